#include "models/qwen/feed_forward.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/gate/gate.h"
#include "models/layers/linear.h"

namespace hyscale {
namespace {

// [T, C] as [T, 1, C]
Tensor one_head(const Tensor& x) { return x.view({x.size(0), 1, x.size(1)}); }

}  // namespace

QwenFeedForward::QwenFeedForward(ParameterStore& store, const std::string& prefix, const QwenConfig& c)
    : moe_(store, prefix, c.moe),
      shared_(store, prefix + "shared_expert.", c.hidden_size, c.shared_size),
      gate_(store.add({.name = prefix + "shared_expert_gate.weight", .shape = {1, c.hidden_size}})) {}

void QwenFeedForward::forward(Context& ctx, Pass pass, const Tensor& x, const Tensor& y, Saved& s) {
  s.x = x;
  s.shared_out = ctx.saved->allocate(ctx.activation, x.shape());
  s.gate = ctx.saved->allocate(DType::f32, {x.size(0), 1});
  moe_.forward(ctx, pass, x, y, s.moe);
  shared_.forward(ctx, x, s.shared_out, s.shared);
  linear(ctx, x, gate_, s.gate);
  const ArenaScope scope(*ctx.scratch);
  const Tensor gated = ctx.scratch->allocate(ctx.activation, x.shape());
  gate({one_head(s.shared_out), one_head(s.gate), GateActivation::sigmoid, one_head(gated), ctx.stream});
  add(y, y, gated, ctx.stream);
}

void QwenFeedForward::backward(Context& ctx, const Tensor& d, const Tensor& dx, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dy = narrowed(ctx, d);
  moe_.backward(ctx, dy, dx, s.moe);
  const Tensor dshared = ctx.scratch->allocate(ctx.activation, dy.shape()), dgate = ctx.scratch->allocate(DType::f32, s.gate.shape());
  gate_backward({one_head(s.shared_out), one_head(s.gate), GateActivation::sigmoid, one_head(dy), one_head(dshared), one_head(dgate), ctx.stream});
  shared_.backward(ctx, dshared, dx, s.shared, true);
  linear_wgrad(ctx, dgate, s.x, gate_);
  linear_dgrad(ctx, dgate, gate_, dx, true);
}

}  // namespace hyscale
