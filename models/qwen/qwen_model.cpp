#include "models/qwen/qwen_model.h"

#include <algorithm>

#include "core/range.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gated_residual/gated_residual.h"
#include "kernels/rope/rope.h"
#include "models/layers/linear.h"

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
    units_.push_back(store_.begin_unit(true));
    layers_.emplace_back(store_, concat(config_.prefix, "layers.", i, "."), config_, config_.sparse_layer[at], config_.ngram_number[at]);
    slots_.push_back(config_.sparse_layer[at] ? num_slots_++ : -1);
    moe_layers_.push_back(&layers_.back().moe());
  }
  head_unit_ = store_.begin_unit(false);
  head_.emplace(store_, config_.prefix + "hyper_connection_mixer.", config_.residual);
  lm_head_ = &store_.add({.name = "lm_head.weight", .shape = {config_.vocab_size, config_.hidden_size}, .kind = ParameterRole::head});
  if (!options.mtp) return;
  mtp_.emplace(store_, mtp_prefix(), config_, options.mtp_depths, num_slots_, *embedding_, *lm_head_);
  num_slots_ += options.mtp_depths;
  moe_layers_.push_back(&mtp_->moe());
}

void QwenModel::prepare(Context& ctx) {
  if (has_constants()) return;
  const std::vector<float> frequencies[] = {rope_inverse_frequencies(config_.rope_theta, config_.attention.rope_dim)};
  inv_freq_ = make_constants(ctx, frequencies)[0];
}

// The embedding in every stream.
Tensor QwenModel::embed(Context& ctx) {
  const int64_t tokens = ctx.sequence->num_tokens();
  const Tensor streams = ctx.saved->allocate(ctx.activation, {tokens, config_.residual.streams, config_.hidden_size});
  const ArenaScope scope(*ctx.scratch);
  const Tensor e = ctx.scratch->allocate(ctx.activation, {tokens, config_.hidden_size});
  embedding({ctx.sequence->tokens, embedding_->value, e, ctx.stream});
  streams_write({{}, {}, e, streams, ctx.stream});
  return streams;
}

void QwenModel::embed_backward(Context& ctx, const Tensor& d) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor de = ctx.scratch->allocate(ctx.activation, {d.size(0), d.size(2)});
  streams_write_backward({{}, {}, d, de, {}, ctx.stream});
  EmbeddingBackward e{ctx.sequence->tokens, de, embedding_->grad, {}, ctx.stream};
  e.workspace = workspace(ctx, embedding_backward_workspace_bytes(e));
  embedding_backward(e);
}

void QwenModel::train_step(Context& ctx, Recompute recompute) {
  prepare(ctx);
  if (ctx.stage == Stage::warmup) return warmup_step(ctx);
  const ArenaScope step(*ctx.saved), gradients(*ctx.scratch);
  std::vector<LayerUse> uses(layers_.size());
  Tensor x = embed(ctx);
  for (size_t i = 0; i < layers_.size(); ++i) {
    uses[i].streams = x;
    const Tensor y = ctx.saved->allocate(ctx.activation, x.shape());
    const Arena::Mark before_layer = ctx.saved->mark();
    const Range range(concat("forward layer ", i).c_str());
    store_.open(unit(i), unit(i + 1), ctx.stream);
    layers_[i].forward(ctx, Pass::forward, slots_[i], x, y, inv_freq_, uses[i].saved);
    store_.close(unit(i));
    if (recompute == Recompute::layer) ctx.saved->rewind(before_layer);
    x = y;
  }
  const Tensor d = ctx.scratch->allocate(ctx.activation, x.shape());
  head_->train(ctx, x, ctx.sequence->labels, *lm_head_, ctx.scales.lm, ctx.sums->lm, d);
  if (mtp_) {
    store_.open_for_backward(mtp_->unit(), unit(layers_.size() - 1), ctx.stream);
    mtp_->train(ctx, recompute, x, d, inv_freq_);
    store_.close_after_backward(mtp_->unit(), ctx.last_micro_batch, ctx.stream);
  }
  store_.close_after_backward(head_unit_, ctx.last_micro_batch, ctx.stream);
  for (size_t i = layers_.size(); i-- > 0;) {
    const ArenaScope recomputed(*ctx.saved);
    const Range range(concat("backward layer ", i).c_str());
    store_.open_for_backward(unit(i), unit(i - 1), ctx.stream);
    if (recompute == Recompute::layer) {
      // The layer's output is known; what is wanted is what its backward reads.
      const Tensor y = ctx.saved->allocate(ctx.activation, x.shape());
      layers_[i].forward(ctx, Pass::recompute, slots_[i], uses[i].streams, y, inv_freq_, uses[i].saved);
    }
    layers_[i].backward(ctx, slots_[i], d, inv_freq_, uses[i].saved);
    store_.close_after_backward(unit(i), ctx.last_micro_batch, ctx.stream);
  }
  embed_backward(ctx, d);
}

void QwenModel::warmup_step(Context& ctx) {
  const ArenaScope step(*ctx.saved);
  Tensor x = embed(ctx), y = ctx.saved->allocate(ctx.activation, x.shape());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const ArenaScope scope(*ctx.saved);
    store_.open_for_backward(unit(i), unit(i + 1), ctx.stream);
    layers_[i].warmup(ctx, slots_[i], x, y, inv_freq_);
    store_.close_after_backward(unit(i), ctx.last_micro_batch, ctx.stream);
    std::swap(x, y);
  }
  head_->loss(ctx, x, ctx.sequence->labels, *lm_head_, ctx.sums->lm);
  evaluate_mtp(ctx, x);
}

void QwenModel::evaluate_mtp(Context& ctx, const Tensor& streams) {
  if (!mtp_) return;
  const bool trains = ctx.stage == Stage::warmup;
  trains ? store_.open_for_backward(mtp_->unit(), -1, ctx.stream) : store_.open(mtp_->unit(), -1, ctx.stream);
  mtp_->evaluate(ctx, streams, inv_freq_);
  trains ? store_.close_after_backward(mtp_->unit(), ctx.last_micro_batch, ctx.stream) : store_.close(mtp_->unit());
}

Tensor QwenModel::forward_only(Context& ctx, Tensor x) {
  Tensor y = ctx.saved->allocate(ctx.activation, x.shape());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const ArenaScope scope(*ctx.saved);
    QwenLayer::Saved saved;
    store_.open(unit(i), unit(i + 1), ctx.stream);
    layers_[i].forward(ctx, Pass::evaluate, slots_[i], x, y, inv_freq_, saved);
    store_.close(unit(i));
    std::swap(x, y);
  }
  return x;
}

void QwenModel::evaluate(Context& ctx) {
  prepare(ctx);
  const ArenaScope step(*ctx.saved);
  const Tensor x = forward_only(ctx, embed(ctx));
  head_->loss(ctx, x, ctx.sequence->labels, *lm_head_, ctx.sums->lm);
  evaluate_mtp(ctx, x);
}

Tensor QwenModel::logits(Context& ctx, Arena& out) {
  prepare(ctx);
  const Tensor logits = out.allocate(DType::f32, {ctx.sequence->num_tokens(), config_.vocab_size});
  const ArenaScope step(*ctx.saved);
  const Tensor x = forward_only(ctx, embed(ctx));
  GatedResidual::Saved saved;
  scratch_gemm(ctx, head_->forward(ctx, x, saved), lm_head_->value, logits, false, true);
  return logits;
}

ForwardFlops QwenModel::forward_flops(int64_t tokens) const {
  const GatedAttentionConfig& a = config_.attention;
  const BlockIndexerConfig& x = a.indexer;
  const GatedDeltaConfig& g = config_.delta;
  const double n = static_cast<double>(tokens), limit = static_cast<double>(std::min(tokens, x.k * x.ratio));
  const double read = (limit * (limit + 1) / 2 + (n - limit) * limit) / n;  // keys of a query, on average
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
