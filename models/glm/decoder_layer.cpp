#include "models/glm/decoder_layer.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/rms_norm/rms_norm.h"
#include "models/layers/context_rows.h"
#include "models/layers/norm.h"
#include "models/selection_health.h"

namespace hyscale {

GlmLayer::GlmLayer(ParameterStore& store, const std::string& prefix, const GlmConfig& c, bool owns_indexer, bool dense)
    : eps_(c.norm_eps),
      input_norm_(store.add(norm_weight(prefix + "input_layernorm.weight", c.attention.hidden_size))),
      post_norm_(store.add(norm_weight(prefix + "post_attention_layernorm.weight", c.attention.hidden_size))),
      attention_(store, prefix + "self_attn.", c.attention),
      k_(c.indexer.k) {
  if (owns_indexer) indexer_.emplace(store, prefix + "self_attn.indexer.", c.indexer);
  if (dense)
    mlp_.emplace(store, prefix + "mlp.", c.attention.hidden_size, c.intermediate_size);
  else
    moe_.emplace(store, prefix + "mlp.", c.moe);
}

void GlmLayer::attention_input(Context& ctx, const Tensor& x, Saved& s) {
  s.x = x;
  s.rstd1 = ctx.saved->allocate(DType::f32, {x.size(0)});
  s.u = ctx.saved->allocate(ctx.activation, x.shape());
  rms_norm({x, input_norm_.value, eps_, s.u, s.rstd1, ctx.stream});
}

void GlmLayer::feed_forward(Context& ctx, Pass pass, const Tensor& attention_out, const Tensor& y, Saved& s) {
  s.x1 = ctx.saved->allocate(ctx.residual(), s.x.shape());
  s.rstd2 = ctx.saved->allocate(DType::f32, {s.x.size(0)});
  s.v = ctx.saved->allocate(ctx.activation, s.x.shape());
  add(s.x1, s.x, attention_out, ctx.stream);
  rms_norm({s.x1, post_norm_.value, eps_, s.v, s.rstd2, ctx.stream});
  if (mlp_)
    mlp_->forward(ctx, s.v, y, s.mlp);
  else
    moe_->forward(ctx, pass, s.v, y, s.moe);
  add(y, y, s.x1, ctx.stream);
}

void GlmLayer::forward(Context& ctx, Pass pass, int slot, const Tensor& x, const Tensor& y, const Tensor& inv_freq, Saved& s) {
  attention_input(ctx, x, s);
  attention_.project(ctx, s.u, inv_freq, s.attention);
  const Tensor kv = indexer_ ? indexer_->forward(ctx, pass, slot, s.u, s.attention.c_q, s.attention.kv, inv_freq, s.indexer)
                             : gather_context_rows(ctx, s.attention.kv, {}).kv;
  attention_.attend(ctx, kv, ctx.selections->get(slot, ctx.stream), y, s.attention);
  if (pass == Pass::forward) sample_selection(ctx, slot, kv, s);
  feed_forward(ctx, pass, y, y, s);
}

void GlmLayer::sample_selection(Context& ctx, int slot, const Tensor& kv, const Saved& s) {
  if (!ctx.health || !indexer_ || !s.indexer.all_keys.defined()) return;
  ctx.health->observe(ctx, {slot, k_, s.attention.q_absorbed, kv, attention_.value_width(), attention_.scale(), s.indexer.q, s.indexer.weights, s.indexer.all_keys,
                            ctx.sequence->key_begin, ctx.sequence->key_end});
}

void GlmLayer::backward(Context& ctx, int slot, const Tensor& dy, const Tensor& inv_freq, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor d = ctx.scratch->allocate(ctx.activation, dy.shape());
  if (mlp_)
    mlp_->backward(ctx, dy, d, s.mlp);
  else
    moe_->backward(ctx, dy, d, s.moe);
  rms_norm_backward(ctx, s.x1, post_norm_, s.rstd2, d, dy, true);

  const bool teach = indexer_ && ctx.scales.index > 0;
  const Tensor head_sum = teach ? ctx.scratch->allocate(DType::f32, {dy.size(0), k_}) : Tensor();
  attention_.backward(ctx, dy, ctx.selections->get(slot, ctx.stream), inv_freq, head_sum, d, s.attention);
  if (teach) indexer_->backward(ctx, slot, head_sum, inv_freq, s.indexer);
  rms_norm_backward(ctx, s.x, input_norm_, s.rstd1, d, dy, true);
}

void GlmLayer::warmup(Context& ctx, int slot, const Tensor& x, const Tensor& y, const Tensor& inv_freq) {
  Saved s;
  attention_input(ctx, x, s);
  attention_.project(ctx, s.u, inv_freq, s.attention);
  Mla::Dense dense;
  const Tensor kv = indexer_ ? indexer_->warmup_forward(ctx, s.u, s.attention.c_q, s.attention.kv, inv_freq, s.indexer)
                             : gather_context_rows(ctx, s.attention.kv, {}).kv;
  sample_selection(ctx, slot, kv, s);
  attention_.attend_dense(ctx, kv, inv_freq, y, s.attention, dense);
  if (indexer_) indexer_->warmup_backward(ctx, slot, inv_freq, s.attention.q, dense, attention_.scale(), s.indexer);
  feed_forward(ctx, Pass::evaluate, y, y, s);
}

}  // namespace hyscale
