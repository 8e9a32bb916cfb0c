#include "models/qwen/qwen_model.h"

#include "kernels/embedding/embedding.h"
#include "kernels/gated_residual/gated_residual.h"
#include "kernels/rope/rope.h"
#include "models/layers/linear.h"
#include "models/layers/vocabulary.h"

namespace hyscale {

QwenModel::QwenModel(const nlohmann::json& hf_config, const std::string& path, const ModelOptions& options)
    : LayeredModel(hf_config, 0), config_(parse_qwen_config(hf_config, path)) {
  config_.moe.expert_rank = options.expert_rank;
  config_.moe.expert_ranks = options.expert_ranks;
  if (options.mtp && config_.mtp_layers != 1)
    throw UserError(concat(path, ": \"mtp_num_hidden_layers\" is ", config_.mtp_layers, "; training MTP needs 1"));
  store_.leave_out("model.visual.");
  embedding_ = &store_.add({.name = config_.prefix + "embed_tokens.weight", .shape = {config_.vocab_size, config_.hidden_size}, .kind = ParameterRole::embedding});
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const size_t at = static_cast<size_t>(i);
    const int slot = config_.sparse_layer[at] ? num_slots_++ : -1;
    moe_layers_.push_back(&layers_.add(slot, concat(config_.prefix, "layers.", i, "."), config_, config_.sparse_layer[at], config_.ngram_number[at]).moe());
  }
  head_unit_ = store_.begin_unit(false);
  head_.emplace(store_, config_.prefix + "hyper_connection_mixer.", config_.residual);
  lm_head_ = &store_.add({.name = "lm_head.weight", .shape = {config_.vocab_size, config_.hidden_size}, .kind = ParameterRole::head});
  if (!options.mtp) return;
  moe_layers_.push_back(&layers_.add_mtp(mtp_prefix(), config_, options.mtp_depths, num_slots_, *embedding_, *lm_head_).moe());
  num_slots_ += options.mtp_depths;
}

void QwenModel::prepare(Context& ctx) {
  if (has_constants()) return;
  const std::vector<float> frequencies[] = {rope_inverse_frequencies(config_.rope_theta, config_.attention.rope_dim)};
  inv_freq_ = make_constants(ctx, frequencies)[0];
}

// The embedding in every stream.
Tensor QwenModel::embed(Context& ctx) {
  const int64_t tokens = ctx.sequence->num_tokens();
  const Tensor streams = ctx.saved->allocate(ctx.residual(), {tokens, config_.residual.streams, config_.hidden_size});
  const ArenaScope scope(*ctx.scratch);
  const Tensor e = ctx.scratch->allocate(ctx.residual(), {tokens, config_.hidden_size});
  embedding({ctx.sequence->tokens, embedding_->value, e, ctx.stream});
  streams_write({{}, {}, e, streams, ctx.stream});
  return streams;
}

void QwenModel::embed_backward(Context& ctx, const Tensor& d) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor de = ctx.scratch->allocate(ctx.residual(), {d.size(0), d.size(2)});
  streams_write_backward({{}, {}, d, de, {}, ctx.stream});
  embedding_backward(ctx, ctx.sequence->tokens, de, *embedding_);
}

void QwenModel::train_step(Context& ctx, Recompute recompute) {
  prepare(ctx);
  const ArenaScope step(*ctx.saved), gradients(*ctx.scratch);
  if (ctx.stage == Stage::warmup) return add_losses(ctx, layers_.warmup(ctx, embed(ctx), inv_freq_));
  std::vector<Layers::Use> uses;
  const Tensor x = layers_.forward(ctx, recompute, embed(ctx), inv_freq_, uses), d = ctx.scratch->allocate(ctx.residual(), x.shape());
  head_->train(ctx, x, ctx.sequence->labels, *lm_head_, ctx.scales.lm, ctx.sums->lm, d);
  layers_.train_mtp(ctx, recompute, x, d, inv_freq_);
  store_.close_after_backward(head_unit_, ctx.last_micro_batch, ctx.stream);
  layers_.backward(ctx, recompute, d, inv_freq_, uses);
  embed_backward(ctx, d);
}

void QwenModel::add_losses(Context& ctx, const Tensor& streams) {
  head_->loss(ctx, streams, ctx.sequence->labels, *lm_head_, ctx.sums->lm);
  layers_.evaluate_mtp(ctx, streams, inv_freq_);
}

void QwenModel::evaluate(Context& ctx) {
  prepare(ctx);
  const ArenaScope step(*ctx.saved);
  add_losses(ctx, layers_.evaluate(ctx, embed(ctx), inv_freq_));
}

Tensor QwenModel::logits(Context& ctx, Arena& out) {
  prepare(ctx);
  const Tensor logits = out.allocate(DType::f32, {ctx.sequence->num_tokens(), config_.vocab_size});
  const ArenaScope step(*ctx.saved);
  const Tensor x = layers_.evaluate(ctx, embed(ctx), inv_freq_);
  GatedResidual::Saved saved;
  scratch_gemm(ctx, head_->forward(ctx, x, saved), lm_head_->value, logits, false, true);
  return logits;
}

ForwardFlops QwenModel::forward_flops(int64_t tokens) const {
  const GatedAttentionConfig& a = config_.attention;
  const BlockIndexerConfig& x = a.indexer;
  const GatedDeltaConfig& g = config_.delta;
  const double n = static_cast<double>(tokens), read = mean_keys_read(n, static_cast<double>(x.k * x.ratio));
  const double pair = 2.0 * static_cast<double>(a.num_heads) * 2 * static_cast<double>(a.head_dim);
  const double score = 2.0 * static_cast<double>(x.num_heads * x.head_dim);
  // A token of the recurrence reads its state twice and writes it once.
  const double state = 3 * 2.0 * static_cast<double>(g.value_heads * g.key_dim * g.value_dim);
  ForwardFlops f{2.0 * static_cast<double>(num_active_elements()), 0, 0};
  for (bool sparse : config_.sparse_layer) {
    f.attention += sparse ? pair * read : state;
    f.dense_attention += sparse ? pair * (n + 1) / 2 : state;
    if (sparse) f.selector += score * n / static_cast<double>(2 * x.ratio);
  }
  return f;
}

}  // namespace hyscale
