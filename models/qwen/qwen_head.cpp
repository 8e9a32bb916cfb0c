#include "models/qwen/qwen_head.h"

#include "core/memory.h"
#include "kernels/lm_head_loss/lm_head_loss.h"

namespace hyscale {

Tensor QwenHead::forward(Context& ctx, const Tensor& streams, GatedResidual::Saved& s) {
  const Tensor h = ctx.saved->allocate(ctx.activation, {streams.size(0), streams.size(2)});
  mixer_.read(ctx, streams, h, s);
  return h;
}

void QwenHead::loss(Context& ctx, const Tensor& streams, const Tensor& labels, Parameter& lm_head, const Tensor& loss_sum) {
  const ArenaScope saved(*ctx.saved), scope(*ctx.scratch);
  GatedResidual::Saved s;
  LmHeadLoss l{forward(ctx, streams, s), lm_head.value, labels, 0, loss_sum, {}, {}, {}, ctx.stream};
  l.workspace = workspace(ctx, lm_head_loss_workspace_bytes(l));
  lm_head_loss(l);
}

void QwenHead::train(Context& ctx, const Tensor& streams, const Tensor& labels, Parameter& lm_head, double scale, const Tensor& loss_sum, const Tensor& d) {
  const ArenaScope saved(*ctx.saved), scope(*ctx.scratch);
  GatedResidual::Saved s;
  const Tensor h = forward(ctx, streams, s), dh = ctx.scratch->allocate(ctx.activation, h.shape());
  {
    const ArenaScope inner(*ctx.scratch);
    LmHeadLoss l{h, lm_head.value, labels, static_cast<float>(scale), loss_sum, dh, lm_head.grad, {}, ctx.stream};
    l.workspace = workspace(ctx, lm_head_loss_workspace_bytes(l));
    lm_head_loss(l);
  }
  zero(d, ctx.stream);
  mixer_.read_backward(ctx, dh, {}, d, s);
}

}  // namespace hyscale
