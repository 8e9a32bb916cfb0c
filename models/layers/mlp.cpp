#include "models/layers/mlp.h"

#include "models/layers/linear.h"

namespace hyscale {

Mlp::Mlp(ParameterStore& store, const std::string& prefix, int64_t hidden_size, int64_t intermediate_size, const MlpNames& names, float limit)
    : gate_up_(store.add({.name = prefix + "gate_up_proj.weight",
                          .shape = {2 * intermediate_size, hidden_size},
                          .hf = {{prefix + names.gate + ".weight", {intermediate_size, hidden_size}, 0},
                                 {prefix + names.up + ".weight", {intermediate_size, hidden_size}, intermediate_size * hidden_size}}})),
      down_(store.add({.name = prefix + names.down + ".weight", .shape = {hidden_size, intermediate_size}})),
      limit_(limit) {}

void Mlp::forward(Context& ctx, const Tensor& x, const Tensor& y, Saved& saved, bool accumulate) {
  saved.x = x;
  saved.gate_up = ctx.saved->allocate(ctx.activation, {x.size(0), gate_up_.shape[0]});
  linear(ctx, x, gate_up_, saved.gate_up);
  const ArenaScope scope(*ctx.scratch);
  const Tensor act = ctx.scratch->allocate(ctx.activation, {x.size(0), down_.shape[1]});
  swiglu({saved.gate_up, act, ctx.stream, limit_});
  scratch_gemm(ctx, act, down_.value, y, false, true, 1, accumulate ? 1 : 0);
}

void Mlp::backward(Context& ctx, const Tensor& dy, const Tensor& dx, const Saved& saved, bool accumulate) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dy_narrow = narrowed(ctx, dy), act = ctx.scratch->allocate(ctx.activation, {dy.size(0), down_.shape[1]});
  swiglu({saved.gate_up, act, ctx.stream, limit_});
  linear_wgrad(ctx, dy_narrow, act, down_);
  linear_dgrad(ctx, dy_narrow, down_, act);
  const Tensor dgate_up = ctx.scratch->allocate(ctx.activation, saved.gate_up.shape());
  swiglu_backward({saved.gate_up, act, dgate_up, ctx.stream, limit_});
  linear_wgrad(ctx, dgate_up, saved.x, gate_up_);
  linear_dgrad(ctx, dgate_up, gate_up_, dx, accumulate);
}

}  // namespace hyscale
