#include "models/deepseek_v4/v4_model.h"

#include <algorithm>

#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "models/layers/linear.h"
#include "models/layers/vocabulary.h"

namespace hyscale {
namespace {

// DeepSeek's files have no "model." in front and call four things otherwise.
std::string released_name(std::string name) {
  if (name.starts_with("model.")) name = name.substr(6);
  if (name == "embed_tokens.weight") return "embed.weight";
  if (name.starts_with("hc_head.hc_")) return "hc_head_" + name.substr(11);
  const std::string kv_norm = ".attn.norm.weight";
  if (name.ends_with(kv_norm)) return name.substr(0, name.size() - kv_norm.size()) + ".attn.kv_norm.weight";
  return name;
}

}  // namespace

V4Model::V4Model(const nlohmann::json& hf_config, const std::string& path, const ModelOptions& options)
    : LayeredModel(hf_config, options.router_bias_update_rate), config_(parse_v4_config(hf_config, path)) {
  config_.moe.expert_rank = options.expert_rank;
  config_.moe.expert_ranks = options.expert_ranks;
  if (options.mtp && (config_.mtp_layers != 1 || options.mtp_depths != 1))
    throw UserError(concat(path, ": \"num_nextn_predict_layers\" is ", config_.mtp_layers, " and model.mtp_depths ", options.mtp_depths, "; training DeepSeek-V4's MTP needs 1 and 1"));
  store_.set_released_names(released_name);
  embedding_ = &store_.add({.name = "model.embed_tokens.weight", .shape = {config_.vocab_size, config_.hidden_size}, .kind = ParameterRole::embedding});
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const size_t at = static_cast<size_t>(i);
    const int slot = config_.compression[at] == Compression::selected ? num_slots_++ : -1;
    moe_layers_.push_back(&layers_.add(slot, concat("model.layers.", i, "."), config_, config_.compression[at], config_.ratios[at], config_.hashed[at]).moe());
  }
  head_unit_ = store_.begin_unit(false);
  head_.emplace(store_, "model.hc_head.hc_", "model.norm.weight", config_.hyper);
  lm_head_ = &store_.add({.name = "head.weight", .shape = {config_.vocab_size, config_.hidden_size}, .kind = ParameterRole::head});
  if (!options.mtp) return;
  moe_layers_.push_back(&layers_.add_mtp(mtp_prefix(), config_, *embedding_, *lm_head_).moe());
}

SequenceNeeds V4Model::sequence_needs() const {
  SequenceNeeds needs{layers_.mtp() ? 1 : 0, {}, config_.window - 1};
  for (int64_t ratio : config_.ratios) needs.reach = std::max(needs.reach, (ratio == 4 ? 2 : 1) * ratio - 1);  // overlapping groups read two
  for (int64_t ratio : config_.ratios)
    if (ratio > 0 && std::find(needs.compression_ratios.begin(), needs.compression_ratios.end(), ratio) == needs.compression_ratios.end())
      needs.compression_ratios.push_back(ratio);
  return needs;
}

void V4Model::prepare(Context& ctx) {
  if (ctx.stage == Stage::warmup) throw UserError("model.stage: warmup is not supported for DeepSeek-V4; expected sparse");
  if (has_constants()) return;
  const std::vector<float> frequencies[] = {rope_inverse_frequencies(config_.rope_theta, config_.rope_dim),
                                            config_.scaled_rope ? yarn_inverse_frequencies(config_.compressed_rope_theta, config_.rope_dim, config_.yarn)
                                                                : rope_inverse_frequencies(config_.compressed_rope_theta, config_.rope_dim)};
  const std::vector<Tensor> placed = make_constants(ctx, frequencies);
  rope_ = {placed[0], placed[1]};
}

// The embedding in every stream.
Tensor V4Model::embed(Context& ctx) {
  const Tensor x = ctx.saved->allocate(ctx.residual(), {ctx.sequence->num_tokens(), config_.hyper.streams, config_.hidden_size});
  const ArenaScope scope(*ctx.scratch);
  const Tensor e = ctx.scratch->allocate(ctx.residual(), {x.size(0), x.size(2)});
  embedding({ctx.sequence->tokens, embedding_->value, e, ctx.stream});
  for (int64_t s = 0; s < x.size(1); ++s) cast(x.select(1, s), e, ctx.stream);
  return x;
}

void V4Model::train_step(Context& ctx, Recompute recompute) {
  prepare(ctx);
  const ArenaScope step(*ctx.saved), gradients(*ctx.scratch);
  std::vector<Layers::Use> uses;
  const Tensor x = layers_.forward(ctx, recompute, embed(ctx), rope_, uses), d = ctx.scratch->allocate(ctx.residual(), x.shape());
  head_->train(ctx, x, ctx.sequence->labels, *lm_head_, ctx.scales.lm, ctx.sums->lm, d);
  layers_.train_mtp(ctx, recompute, x, d, rope_);
  store_.close_after_backward(head_unit_, ctx.last_micro_batch, ctx.stream);
  layers_.backward(ctx, recompute, d, rope_, uses);
  const Tensor de = ctx.scratch->allocate(ctx.residual(), {d.size(0), d.size(2)});
  hc_read({d, {}, de, ctx.stream});
  embedding_backward(ctx, ctx.sequence->tokens, de, *embedding_);
}

void V4Model::evaluate(Context& ctx) {
  prepare(ctx);
  const ArenaScope step(*ctx.saved);
  const Tensor x = layers_.evaluate(ctx, embed(ctx), rope_);
  head_->loss(ctx, x, ctx.sequence->labels, *lm_head_, ctx.sums->lm);
  layers_.evaluate_mtp(ctx, x, rope_);
}

Tensor V4Model::logits(Context& ctx, Arena& out) {
  prepare(ctx);
  const Tensor logits = out.allocate(DType::f32, {ctx.sequence->num_tokens(), config_.vocab_size});
  const ArenaScope step(*ctx.saved);
  const Tensor x = layers_.evaluate(ctx, embed(ctx), rope_);
  V4Head::Saved saved;
  scratch_gemm(ctx, head_->forward(ctx, x, saved), lm_head_->value, logits, false, true);
  return logits;
}

ForwardFlops V4Model::forward_flops(int64_t tokens) const {
  const double n = static_cast<double>(tokens), window = static_cast<double>(config_.window);
  const double pair = 2.0 * static_cast<double>(config_.num_heads) * 2 * static_cast<double>(config_.head_dim);
  const double score = 2.0 * static_cast<double>(config_.index_heads * config_.index_dim);
  ForwardFlops f{2.0 * static_cast<double>(num_active_elements()), 0, 0};
  for (size_t i = 0; i < layers_.size(); ++i) {
    f.attention += pair * mean_keys_read(n, window);
    if (config_.compression[i] == Compression::none) continue;
    const double entries = n / static_cast<double>(config_.ratios[i]);
    const bool selects = config_.compression[i] == Compression::selected;
    f.attention += pair * (selects ? mean_keys_read(entries, static_cast<double>(config_.index_k)) : entries / 2);
    if (selects) f.selector += score * entries / 2;
  }
  return f;
}

}  // namespace hyscale
