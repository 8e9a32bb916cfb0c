#include "models/glm/glm_model.h"

#include "core/range.h"
#include "kernels/embedding/embedding.h"
#include "kernels/lm_head_loss/lm_head_loss.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "models/layers/linear.h"

namespace hyscale {

GlmModel::GlmModel(const nlohmann::json& hf_config, const std::string& path, const ModelOptions& options)
    : LayeredModel(hf_config, options.router_bias_update_rate), config_(parse_glm_config(hf_config, path)), options_(options) {
  config_.attention.latent_eps = options.latent_norm_eps;
  config_.indexer.e4m3 = options.e4m3_indexer;
  config_.moe.expert_rank = options.expert_rank;
  config_.moe.expert_ranks = options.expert_ranks;
  if (options.mtp && config_.mtp_layers != 1)
    throw UserError(concat(path, ": \"num_nextn_predict_layers\" is ", config_.mtp_layers, "; training MTP needs 1"));
  if (options.mtp && options.mtp_depths > 1 && config_.mtp_shares_selection)
    throw UserError(concat(path, ": \"index_share_for_mtp_iteration\" is true with ", options.mtp_depths,
                           " MTP depths; every depth selects for itself here: train 1 depth, or set the key to false"));
  const int64_t hidden = config_.attention.hidden_size;
  embedding_ = &store_.add({.name = "model.embed_tokens.weight", .shape = {config_.vocab_size, hidden}, .kind = ParameterRole::embedding});
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const size_t at = static_cast<size_t>(i);
    num_slots_ += config_.selecting_layer[at];
    slots_.push_back(num_slots_ - 1);
    units_.push_back(store_.begin_unit(true));
    layers_.emplace_back(store_, concat("model.layers.", i, "."), config_, config_.selecting_layer[at], config_.dense_layer[at]);
    if (layers_.back().moe()) moe_layers_.push_back(layers_.back().moe());
  }
  head_unit_ = store_.begin_unit(false);
  norm_ = &store_.add(norm_weight("model.norm.weight", hidden));
  lm_head_ = &store_.add({.name = "lm_head.weight", .shape = {config_.vocab_size, hidden}, .kind = ParameterRole::head});
  if (!options.mtp) return;
  mtp_.emplace(store_, mtp_prefix(), config_, options.mtp_depths, num_slots_, *embedding_, *lm_head_);
  num_slots_ += options.mtp_depths;
  moe_layers_.push_back(mtp_->moe());
}

void GlmModel::prepare(Context& ctx) {
  if (has_constants()) return;
  const std::vector<float> frequencies[] = {rope_inverse_frequencies(config_.attention.rope_theta, config_.attention.rope_dim)};
  inv_freq_ = make_constants(ctx, frequencies)[0];
}

Tensor GlmModel::embed(Context& ctx) {
  const Tensor x = ctx.saved->allocate(ctx.activation, {ctx.sequence->num_tokens(), config_.attention.hidden_size});
  embedding({ctx.sequence->tokens, embedding_->value, x, ctx.stream});
  return x;
}

Tensor GlmModel::final_norm(Context& ctx, const Tensor& x, const Tensor& rstd) {
  const Tensor h = ctx.saved->allocate(ctx.activation, x.shape());
  rms_norm({x, norm_->value, config_.norm_eps, h, rstd, ctx.stream});
  return h;
}

void GlmModel::train_step(Context& ctx, Recompute recompute) {
  prepare(ctx);
  const ArenaScope step(*ctx.saved);
  if (ctx.stage == Stage::warmup) return warmup_step(ctx);
  std::vector<LayerUse> uses(layers_.size());
  Tensor x = embed(ctx);
  for (size_t i = 0; i < layers_.size(); ++i) {
    uses[i].x = x;
    const Tensor y = ctx.saved->allocate(ctx.activation, x.shape());
    const Arena::Mark before_layer = ctx.saved->mark();
    const Range range(concat("forward layer ", i).c_str());
    store_.open(unit(i), unit(i + 1), ctx.stream);
    layers_[i].forward(ctx, Pass::forward, slots_[i], x, y, inv_freq_, uses[i].saved);
    store_.close(unit(i));
    if (recompute == Recompute::layer) ctx.saved->rewind(before_layer);
    x = y;
  }
  const Tensor rstd = ctx.saved->allocate(DType::f32, {x.size(0)}), h = final_norm(ctx, x, rstd), dh = ctx.saved->allocate(ctx.activation, x.shape());
  {
    const ArenaScope scope(*ctx.scratch);
    LmHeadLoss l{h, lm_head_->value, ctx.sequence->labels, static_cast<float>(ctx.scales.lm), ctx.sums->lm, dh, lm_head_->grad, {}, ctx.stream};
    l.workspace = workspace(ctx, lm_head_loss_workspace_bytes(l));
    lm_head_loss(l);
  }
  if (mtp_) {
    const ArenaScope scope(*ctx.saved);
    store_.open_for_backward(mtp_->unit(), unit(layers_.size() - 1), ctx.stream);
    mtp_->train(ctx, recompute, h, dh, inv_freq_);
    store_.close_after_backward(mtp_->unit(), ctx.last_micro_batch, ctx.stream);
  }
  RmsNormBackward n{x, norm_->value, rstd, dh, dh, false, norm_->grad, {}, ctx.stream};
  {
    const ArenaScope scope(*ctx.scratch);
    n.workspace = workspace(ctx, rms_norm_backward_workspace_bytes(n));
    rms_norm_backward(n);
  }
  store_.close_after_backward(head_unit_, ctx.last_micro_batch, ctx.stream);
  for (size_t i = layers_.size(); i-- > 0;) {
    const ArenaScope recomputed(*ctx.saved);
    const Range range(concat("backward layer ", i).c_str());
    store_.open_for_backward(unit(i), unit(i - 1), ctx.stream);
    if (recompute == Recompute::layer) {
      // The layer's output is known; what is wanted is what its backward reads.
      const Tensor y = ctx.saved->allocate(ctx.activation, x.shape());
      layers_[i].forward(ctx, Pass::recompute, slots_[i], uses[i].x, y, inv_freq_, uses[i].saved);
    }
    layers_[i].backward(ctx, slots_[i], dh, inv_freq_, uses[i].saved);
    store_.close_after_backward(unit(i), ctx.last_micro_batch, ctx.stream);
  }
  const ArenaScope scope(*ctx.scratch);
  EmbeddingBackward e{ctx.sequence->tokens, dh, embedding_->grad, {}, ctx.stream};
  e.workspace = workspace(ctx, embedding_backward_workspace_bytes(e));
  embedding_backward(e);
}

void GlmModel::warmup_step(Context& ctx) {
  Tensor x = embed(ctx), y = ctx.saved->allocate(ctx.activation, x.shape());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const ArenaScope scope(*ctx.saved);
    store_.open_for_backward(unit(i), unit(i + 1), ctx.stream);
    layers_[i].warmup(ctx, slots_[i], x, y, inv_freq_);
    store_.close_after_backward(unit(i), ctx.last_micro_batch, ctx.stream);
    std::swap(x, y);
  }
  const Tensor h = final_norm(ctx, x, {});
  {
    const ArenaScope scope(*ctx.scratch);
    LmHeadLoss l{h, lm_head_->value, ctx.sequence->labels, 0, ctx.sums->lm, {}, {}, {}, ctx.stream};
    l.workspace = workspace(ctx, lm_head_loss_workspace_bytes(l));
    lm_head_loss(l);
  }
  evaluate_mtp(ctx, h);
}

void GlmModel::evaluate_mtp(Context& ctx, const Tensor& h) {
  if (!mtp_) return;
  const bool trains = ctx.stage == Stage::warmup;
  trains ? store_.open_for_backward(mtp_->unit(), -1, ctx.stream) : store_.open(mtp_->unit(), -1, ctx.stream);
  mtp_->evaluate(ctx, h, inv_freq_);
  trains ? store_.close_after_backward(mtp_->unit(), ctx.last_micro_batch, ctx.stream) : store_.close(mtp_->unit());
}

Tensor GlmModel::forward_only(Context& ctx, Tensor x) {
  Tensor y = ctx.saved->allocate(ctx.activation, x.shape());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const ArenaScope scope(*ctx.saved);
    DecoderLayer::Saved saved;
    store_.open(unit(i), unit(i + 1), ctx.stream);
    layers_[i].forward(ctx, Pass::evaluate, slots_[i], x, y, inv_freq_, saved);
    store_.close(unit(i));
    std::swap(x, y);
  }
  return final_norm(ctx, x, {});
}

void GlmModel::evaluate(Context& ctx) {
  prepare(ctx);
  HYSCALE_CHECK(ctx.stage == Stage::sparse, "evaluation reads selections");
  const ArenaScope step(*ctx.saved);
  const Tensor h = forward_only(ctx, embed(ctx));
  {
    const ArenaScope scope(*ctx.scratch);
    LmHeadLoss l{h, lm_head_->value, ctx.sequence->labels, 0, ctx.sums->lm, {}, {}, {}, ctx.stream};
    l.workspace = workspace(ctx, lm_head_loss_workspace_bytes(l));
    lm_head_loss(l);
  }
  evaluate_mtp(ctx, h);
}

Tensor GlmModel::logits(Context& ctx, Arena& out) {
  prepare(ctx);
  const Tensor logits = out.allocate(DType::f32, {ctx.sequence->num_tokens(), config_.vocab_size});
  const ArenaScope step(*ctx.saved);
  scratch_gemm(ctx, forward_only(ctx, embed(ctx)), lm_head_->value, logits, false, true);
  return logits;
}

ForwardFlops GlmModel::forward_flops(int64_t tokens) const {
  const MlaConfig& a = config_.attention;
  const IndexerConfig& x = config_.indexer;
  const double n = static_cast<double>(tokens), k = static_cast<double>(std::min(tokens, x.k));
  const double visible = (n + 1) / 2;                        // keys a query sees, on average
  const double selected = k * (k + 1) / 2 / n + (n - k) * k / n;  // keys a query reads, on average
  const double pair = 2.0 * static_cast<double>(a.num_heads * (2 * a.kv_rank + a.rope_dim));
  const double score = 2.0 * static_cast<double>(x.num_heads * x.head_dim);
  double selecting = 0;
  for (bool owns : config_.selecting_layer) selecting += owns;
  const double layers = static_cast<double>(config_.num_layers), dense_pair = 2.0 * static_cast<double>(a.num_heads * (a.nope_dim + a.rope_dim + a.value_dim));
  return {2.0 * static_cast<double>(num_active_elements()), pair * selected * layers, score * visible * selecting, dense_pair * visible * layers};
}

}  // namespace hyscale
