#include "models/deepseek_v4/v4_head.h"

#include "core/memory.h"
#include "kernels/lm_head_loss/lm_head_loss.h"
#include "kernels/rms_norm/rms_norm.h"

namespace hyscale {

V4Head::V4Head(ParameterStore& store, const std::string& hyper_prefix, const std::string& norm_name, const HyperConnectionConfig& c)
    : eps_(c.norm_eps), hyper_(store, hyper_prefix, c, true), norm_(store.add(norm_weight(norm_name, c.hidden_size))) {}

Tensor V4Head::forward(Context& ctx, const Tensor& x, Saved& s) {
  const Shape shape{x.size(0), x.size(2)};
  s.h = ctx.saved->allocate(ctx.activation, shape);
  s.rstd = ctx.saved->allocate(DType::f32, {x.size(0)});
  s.out = ctx.saved->allocate(ctx.activation, shape);
  hyper_.read(ctx, x, s.h, s.hyper);
  rms_norm({s.h, norm_.value, eps_, s.out, s.rstd, ctx.stream});
  return s.out;
}

void V4Head::loss(Context& ctx, const Tensor& x, const Tensor& labels, Parameter& lm_head, const Tensor& loss_sum) {
  const ArenaScope saved(*ctx.saved), scope(*ctx.scratch);
  Saved s;
  LmHeadLoss l{forward(ctx, x, s), lm_head.value, labels, 0, loss_sum, {}, {}, {}, ctx.stream};
  l.workspace = workspace(ctx, lm_head_loss_workspace_bytes(l));
  lm_head_loss(l);
}

void V4Head::train(Context& ctx, const Tensor& x, const Tensor& labels, Parameter& lm_head, double scale, const Tensor& loss_sum, const Tensor& d) {
  const ArenaScope saved(*ctx.saved), scope(*ctx.scratch);
  Saved s;
  const Tensor out = forward(ctx, x, s), dh = ctx.scratch->allocate(ctx.activation, out.shape());
  {
    const ArenaScope inner(*ctx.scratch);
    LmHeadLoss l{out, lm_head.value, labels, static_cast<float>(scale), loss_sum, dh, lm_head.grad, {}, ctx.stream};
    l.workspace = workspace(ctx, lm_head_loss_workspace_bytes(l));
    lm_head_loss(l);
  }
  {
    const ArenaScope inner(*ctx.scratch);
    RmsNormBackward n{s.h, norm_.value, s.rstd, dh, dh, false, norm_.grad, {}, ctx.stream};
    n.workspace = workspace(ctx, rms_norm_backward_workspace_bytes(n));
    rms_norm_backward(n);
  }
  zero(d, ctx.stream);
  hyper_.read_backward(ctx, dh, {}, d, s.hyper);
}

}  // namespace hyscale
