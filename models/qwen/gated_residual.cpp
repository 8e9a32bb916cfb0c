#include "models/qwen/gated_residual.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/gated_residual/gated_residual.h"
#include "kernels/silu/silu.h"
#include "models/layers/linear.h"
#include "models/qwen/zero_centred_norm.h"

namespace hyscale {

GatedResidual::GatedResidual(ParameterStore& store, const std::string& prefix, const GatedResidualConfig& c, bool writes)
    : config_(c),
      norm_(store.add(zero_centred_weight(prefix + "hc_norm.weight", c.width()))),
      down_(store.add({.name = prefix + "input_mix_weight_down.weight", .shape = {c.rank, c.width()}})),
      up_(store.add({.name = prefix + "input_mix_weight_up.weight", .shape = {c.width(), c.rank}})),
      inject_(writes ? &store.add({.name = prefix + "block_inject_weight.weight", .shape = {c.streams, c.width()}}) : nullptr) {}

void GatedResidual::read(Context& ctx, const Tensor& streams, const Tensor& x, Saved& s) {
  const int64_t tokens = streams.size(0);
  s.streams = streams;
  s.rstd = ctx.saved->allocate(DType::f32, {config_.streams, tokens});
  s.normed = ctx.saved->allocate(ctx.activation, streams.shape());
  s.down = ctx.saved->allocate(ctx.activation, {tokens, config_.rank});
  s.gates = ctx.saved->allocate(ctx.activation, streams.shape());
  group_norm(ctx, streams.as_matrix(), norm_, config_.eps, s.normed.as_matrix(), s.rstd);
  linear(ctx, s.normed.as_matrix(), down_, s.down);
  scale(s.down, share(), ctx.stream);
  const ArenaScope scope(*ctx.scratch);
  const Tensor activated = ctx.scratch->allocate(ctx.activation, s.down.shape());
  silu({s.down, activated, ctx.stream});
  linear(ctx, activated, up_, s.gates.as_matrix());
  streams_read({s.normed, s.gates, x, ctx.stream});
  if (!inject_) return;
  s.logits = ctx.saved->allocate(DType::f32, {tokens, config_.streams});
  linear(ctx, s.normed.as_matrix(), *inject_, s.logits);
  scale(s.logits, share(), ctx.stream);
}

void GatedResidual::write(Context& ctx, const Tensor& y, const Tensor& out, Saved& s) {
  s.y = y;
  streams_write({s.streams, s.logits, y, out, ctx.stream});
}

Tensor GatedResidual::write_backward(Context& ctx, const Tensor& dout, const Tensor& dy, const Saved& s) {
  const Tensor dlogits = ctx.scratch->allocate(DType::f32, s.logits.shape());
  streams_write_backward({s.logits, s.y, dout, dy, dlogits, ctx.stream});
  return dlogits;
}

void GatedResidual::read_backward(Context& ctx, const Tensor& dx, const Tensor& dlogits, const Tensor& dstreams, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor normed = s.normed.as_matrix();
  const Tensor dnormed = ctx.scratch->allocate(ctx.activation, s.normed.shape()), dgates = ctx.scratch->allocate(ctx.activation, s.gates.shape());
  const Tensor activated = ctx.scratch->allocate(ctx.activation, s.down.shape()), ddown = ctx.scratch->allocate(ctx.activation, s.down.shape());
  streams_read_backward({s.normed, s.gates, dx, dnormed, dgates, ctx.stream});
  silu({s.down, activated, ctx.stream});
  linear_wgrad(ctx, dgates.as_matrix(), activated, up_);
  linear_dgrad(ctx, dgates.as_matrix(), up_, ddown);
  silu_backward({s.down, ddown, ddown, ctx.stream});
  scale(ddown, share(), ctx.stream);
  linear_wgrad(ctx, ddown, normed, down_);
  linear_dgrad(ctx, ddown, down_, dnormed.as_matrix(), true);
  if (dlogits.defined()) {
    scale(dlogits, share(), ctx.stream);
    linear_wgrad(ctx, dlogits, normed, *inject_);
    linear_dgrad(ctx, dlogits, *inject_, dnormed.as_matrix(), true);
  }
  group_norm_backward(ctx, s.streams.as_matrix(), norm_, s.rstd, dnormed.as_matrix(), dstreams.as_matrix(), true);
}

}  // namespace hyscale
