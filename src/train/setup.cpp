#include "train/setup.h"

#include <filesystem>

namespace hyscale {

Device choose_device(const std::string& name, int local_rank) {
  const int devices = cuda_device_count();
  const bool usable = devices > 0;
  if (name == "cuda" && !usable)
    throw UserError(concat("run.device: cuda, but ", built_with_cuda() ? "no CUDA device is usable here" : "this build has no CUDA backend"));
  if (name == "cuda" || (name == "auto" && usable)) return Device{DeviceType::cuda, local_rank % devices};
  return Device{};
}

DType compute_dtype(Device device) { return device.is_cuda() ? DType::bf16 : DType::f32; }

std::string hf_config_path(const Config& c) {
  return std::filesystem::is_directory(c.model.config) ? c.model.config + "/config.json" : c.model.config;
}

std::unique_ptr<Model> make_model(const Config& c, const ProcessGroups* groups) {
  const std::string path = hf_config_path(c);
  ModelOptions o;
  o.latent_norm_eps = static_cast<float>(c.model.latent_norm_eps);
  o.mtp = c.model.mtp;
  o.mtp_depths = static_cast<int>(c.model.mtp_depths);
  o.router_bias_update_rate = c.model.stage == "warmup" ? 0 : static_cast<float>(c.loss.router_bias_update_rate);
  if (groups) o.expert_rank = groups->place.expert, o.expert_ranks = groups->sizes.expert;
  return make_model(read_hf_config(path), path, o);
}

ParallelSizes parallel_sizes(const Config& c) {
  return {static_cast<int>(c.parallel.data), static_cast<int>(c.parallel.context), static_cast<int>(c.parallel.expert),
          c.parallel.neighbours == "context"};
}

Sharding sharding(const Config& c, const ProcessGroups& g) { return {g.world.get(), g.expert_replicas.get(), c.parallel.sharding == "weights"}; }

StepOptions step_options(const Config& c, Device device, DType activation, ProcessGroups* groups) {
  StepOptions o;
  o.groups = groups;
  o.context_order = c.parallel.context_order == "contiguous" ? ContextOrder::contiguous : ContextOrder::zigzag;
  o.context_transport = c.parallel.context_transport == "all_gather" ? ContextTransport::all_gather : ContextTransport::ring;
  o.device = device;
  o.activation = activation;
  o.stage = c.model.stage == "warmup" ? Stage::warmup : Stage::sparse;
  o.recompute = c.train.recompute == "layer" ? Recompute::layer : Recompute::none;
  o.replay = c.train.selection_replay;
  o.storage = c.train.selection_storage == "packed" ? SelectionStorage::packed : SelectionStorage::int32;
  o.deterministic = c.train.deterministic;
  o.index_coefficient = c.loss.index_coefficient;
  o.balance_coefficient = c.loss.balance_coefficient;
  o.mtp_coefficient = c.model.mtp ? c.loss.mtp_coefficient : 0;
  return o;
}

OptimizerOptions optimizer_options(const Config& c) {
  const Config::Optimizer& o = c.optimizer;
  return {o.beta1, o.beta2, o.eps, o.weight_decay, o.clip_norm, o.indexer_clip_norm, o.indexer_lr_scale, c.model.stage == "warmup"};
}

Schedule make_schedule(const Config& c) {
  const std::string& kind = c.schedule.kind;
  Schedule s;
  s.kind = kind == "linear" ? Schedule::Kind::linear : kind == "cosine" ? Schedule::Kind::cosine : kind == "wsd" ? Schedule::Kind::wsd : Schedule::Kind::constant;
  s.peak = c.optimizer.lr;
  s.lowest = c.schedule.min_lr;
  s.steps = c.train.steps;
  s.warmup_steps = c.schedule.warmup_steps;
  s.decay_steps = c.schedule.decay_steps;
  return s;
}

}  // namespace hyscale
