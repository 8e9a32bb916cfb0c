#include "models/deepseek_v4/v4_head.h"

#include "core/memory.h"
#include "kernels/rms_norm/rms_norm.h"
#include "models/layers/norm.h"
#include "models/layers/vocabulary.h"

namespace hyscale {

V4Head::V4Head(ParameterStore& store, const std::string& hyper_prefix, const std::string& norm_name, const HyperConnectionConfig& c)
    : eps_(c.norm_eps), hyper_(store, hyper_prefix, c, true), norm_(store.add(norm_weight(norm_name, c.hidden_size))) {}

Tensor V4Head::forward(Context& ctx, const Tensor& x, Saved& s) {
  const Shape shape{x.size(0), x.size(2)};
  s.h = ctx.saved->allocate(ctx.residual(), shape);
  s.rstd = ctx.saved->allocate(DType::f32, {x.size(0)});
  s.out = ctx.saved->allocate(ctx.activation, shape);
  hyper_.read(ctx, x, s.h, s.hyper);
  rms_norm({s.h, norm_.value, eps_, s.out, s.rstd, ctx.stream});
  return s.out;
}

void V4Head::loss(Context& ctx, const Tensor& x, const Tensor& labels, Parameter& lm_head, const Tensor& loss_sum) {
  const ArenaScope saved(*ctx.saved), scope(*ctx.scratch);
  Saved s;
  lm_head_loss(ctx, forward(ctx, x, s), lm_head, labels, loss_sum);
}

void V4Head::train(Context& ctx, const Tensor& x, const Tensor& labels, Parameter& lm_head, double scale, const Tensor& loss_sum, const Tensor& d) {
  const ArenaScope saved(*ctx.saved), scope(*ctx.scratch);
  Saved s;
  const Tensor out = forward(ctx, x, s), dout = ctx.scratch->allocate(ctx.activation, out.shape());
  const Tensor dh = ctx.residual() == ctx.activation ? dout : ctx.scratch->allocate(ctx.residual(), out.shape());
  lm_head_loss_backward(ctx, out, lm_head, labels, scale, loss_sum, dout);
  rms_norm_backward(ctx, s.h, norm_, s.rstd, dout, dh);
  zero(d, ctx.stream);
  hyper_.read_backward(ctx, dh, {}, d, s.hyper);
}

}  // namespace hyscale
