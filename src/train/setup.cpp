#include "train/setup.h"

#include <filesystem>
#include <set>

namespace hyscale {
namespace {

RoleOptions role_options(const Config::Optimizer& o, ParameterRole role) {
  const bool by_default = role == ParameterRole::dense || role == ParameterRole::experts || role == ParameterRole::indexer;
  const auto found = o.groups.find(role_name(role));
  const OptimizerGroup group = found == o.groups.end() ? OptimizerGroup{} : found->second;
  return {group.name == "inherit" ? o.name == "muon" && by_default : group.name == "muon", group.lr > 0 ? group.lr / o.lr : group.lr_scale};
}

}  // namespace

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
  o.e4m3_indexer = c.model.indexer_dtype == "e4m3";
  o.mtp = c.model.mtp;
  o.mtp_depths = static_cast<int>(c.model.mtp_depths);
  o.router_bias_update_rate = static_cast<float>(c.loss.router_bias_update_rate);
  if (groups) o.expert_rank = groups->place.expert, o.expert_ranks = groups->sizes.expert, o.rank = groups->world->rank(), o.ranks = groups->world->size();
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
  o.f32_residual = c.train.residual_dtype == "float32";
  o.stage = c.model.stage == "warmup" ? Stage::warmup : Stage::sparse;
  o.recompute = c.train.recompute == "layer" ? Recompute::layer : Recompute::none;
  o.replay = c.train.selection_replay;
  o.storage = c.train.selection_storage == "packed" ? SelectionStorage::packed : c.train.selection_storage == "host" ? SelectionStorage::host : SelectionStorage::int32;
  o.deterministic = c.train.deterministic;
  o.index_coefficient = c.loss.index_coefficient;
  o.balance_coefficient = c.loss.balance_coefficient;
  o.mtp_coefficient = c.model.mtp ? c.loss.mtp_coefficient : 0;
  return o;
}

OptimizerOptions optimizer_options(const Config& c) {
  const Config::Optimizer& o = c.optimizer;
  OptimizerOptions out{.beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = o.weight_decay, .clip_norm = o.clip_norm, .indexer_clip_norm = o.indexer_clip_norm};
  out.indexer_only = c.model.stage == "warmup";
  for (int role = 0; role < kNumParameterRoles; ++role) out.roles[static_cast<size_t>(role)] = role_options(o, static_cast<ParameterRole>(role));
  out.muon = {o.momentum, o.update_rms, o.split_heads,
              o.newton_schulz == "quintic" ? quintic_steps(o.newton_schulz_steps, o.polish_steps) : polar_express_steps(o.newton_schulz_steps)};
  return out;
}

void check_groups(const Config& c, const ParameterStore& store) {
  std::set<std::string> roles;
  for (const Parameter& p : store.all())
    if (p.group != ParameterGroup::buffer) roles.insert(role_name(p.role()));
  std::string all;
  for (const std::string& role : roles) all += (all.empty() ? "" : ", ") + role;
  for (const auto& [role, group] : c.optimizer.groups)
    if (!roles.count(role)) throw UserError(concat("optimizer.groups: the model has no parameters of ", role, "; it has ", all));
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
