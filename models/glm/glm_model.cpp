#include "models/glm/glm_model.h"

#include "kernels/embedding/embedding.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/vocabulary.h"

namespace hyscale {

GlmModel::GlmModel(const nlohmann::json& hf_config, const std::string& path, const ModelOptions& options)
    : LayeredModel(hf_config, options.router_bias_update_rate), config_(parse_glm_config(hf_config, path)) {
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
    GlmLayer& layer = layers_.add(num_slots_ - 1, concat("model.layers.", i, "."), config_, config_.selecting_layer[at], config_.dense_layer[at]);
    if (layer.moe()) moe_layers_.push_back(layer.moe());
  }
  head_unit_ = store_.begin_unit(false);
  norm_ = &store_.add(norm_weight("model.norm.weight", hidden));
  lm_head_ = &store_.add({.name = "lm_head.weight", .shape = {config_.vocab_size, hidden}, .kind = ParameterRole::head});
  if (!options.mtp) return;
  moe_layers_.push_back(layers_.add_mtp(mtp_prefix(), config_, options.mtp_depths, num_slots_, *embedding_, *lm_head_).moe());
  num_slots_ += options.mtp_depths;
}

void GlmModel::prepare(Context& ctx) {
  if (has_constants()) return;
  const std::vector<float> frequencies[] = {rope_inverse_frequencies(config_.attention.rope_theta, config_.attention.rope_dim)};
  inv_freq_ = make_constants(ctx, frequencies)[0];
}

Tensor GlmModel::embed(Context& ctx) {
  const Tensor x = ctx.saved->allocate(ctx.residual(), {ctx.sequence->num_tokens(), config_.attention.hidden_size});
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
  if (ctx.stage == Stage::warmup) return add_losses(ctx, layers_.warmup(ctx, embed(ctx), inv_freq_));
  std::vector<Layers::Use> uses;
  const Tensor x = layers_.forward(ctx, recompute, embed(ctx), inv_freq_, uses);
  const Tensor rstd = ctx.saved->allocate(DType::f32, {x.size(0)}), h = final_norm(ctx, x, rstd);
  const Tensor dh = ctx.saved->allocate(ctx.activation, x.shape()), d = ctx.residual() == ctx.activation ? dh : ctx.saved->allocate(ctx.residual(), x.shape());
  lm_head_loss_backward(ctx, h, *lm_head_, ctx.sequence->labels, ctx.scales.lm, ctx.sums->lm, dh);
  layers_.train_mtp(ctx, recompute, h, dh, inv_freq_);
  rms_norm_backward(ctx, x, *norm_, rstd, dh, d);
  store_.close_after_backward(head_unit_, ctx.last_micro_batch, ctx.stream);
  layers_.backward(ctx, recompute, d, inv_freq_, uses);
  embedding_backward(ctx, ctx.sequence->tokens, d, *embedding_);
}

void GlmModel::add_losses(Context& ctx, const Tensor& x) {
  const Tensor h = final_norm(ctx, x, {});
  lm_head_loss(ctx, h, *lm_head_, ctx.sequence->labels, ctx.sums->lm);
  layers_.evaluate_mtp(ctx, h, inv_freq_);
}

void GlmModel::evaluate(Context& ctx) {
  prepare(ctx);
  HYSCALE_CHECK(ctx.stage == Stage::sparse, "evaluation reads selections");
  const ArenaScope step(*ctx.saved);
  add_losses(ctx, layers_.evaluate(ctx, embed(ctx), inv_freq_));
}

Tensor GlmModel::logits(Context& ctx, Arena& out) {
  prepare(ctx);
  const Tensor logits = out.allocate(DType::f32, {ctx.sequence->num_tokens(), config_.vocab_size});
  const ArenaScope step(*ctx.saved);
  scratch_gemm(ctx, final_norm(ctx, layers_.evaluate(ctx, embed(ctx), inv_freq_), {}), lm_head_->value, logits, false, true);
  return logits;
}

ForwardFlops GlmModel::forward_flops(int64_t tokens) const {
  const MlaConfig& a = config_.attention;
  const IndexerConfig& x = config_.indexer;
  const double n = static_cast<double>(tokens), visible = mean_keys_read(n, n), selected = mean_keys_read(n, static_cast<double>(x.k));
  const double pair = 2.0 * static_cast<double>(a.num_heads * (2 * a.kv_rank + a.rope_dim));
  const double score = 2.0 * static_cast<double>(x.num_heads * x.head_dim);
  double selecting = 0;
  for (bool owns : config_.selecting_layer) selecting += owns;
  const double layers = static_cast<double>(config_.num_layers), dense_pair = 2.0 * static_cast<double>(a.num_heads * (a.nope_dim + a.rope_dim + a.value_dim));
  return {2.0 * static_cast<double>(num_active_elements()), pair * selected * layers, score * visible * selecting, dense_pair * visible * layers};
}

}  // namespace hyscale
