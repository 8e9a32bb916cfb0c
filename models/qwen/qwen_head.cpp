#include "models/qwen/qwen_head.h"

#include "core/memory.h"
#include "models/layers/vocabulary.h"

namespace hyscale {

Tensor QwenHead::forward(Context& ctx, const Tensor& streams, GatedResidual::Saved& s) {
  const Tensor h = ctx.saved->allocate(ctx.activation, {streams.size(0), streams.size(2)});
  mixer_.read(ctx, streams, h, s);
  return h;
}

void QwenHead::loss(Context& ctx, const Tensor& streams, const Tensor& labels, Parameter& lm_head, const Tensor& loss_sum) {
  const ArenaScope saved(*ctx.saved), scope(*ctx.scratch);
  GatedResidual::Saved s;
  lm_head_loss(ctx, forward(ctx, streams, s), lm_head, labels, loss_sum);
}

void QwenHead::train(Context& ctx, const Tensor& streams, const Tensor& labels, Parameter& lm_head, double scale, const Tensor& loss_sum, const Tensor& d) {
  const ArenaScope saved(*ctx.saved), scope(*ctx.scratch);
  GatedResidual::Saved s;
  const Tensor h = forward(ctx, streams, s), dh = ctx.scratch->allocate(ctx.activation, h.shape());
  lm_head_loss_backward(ctx, h, lm_head, labels, scale, loss_sum, dh);
  zero(d, ctx.stream);
  mixer_.read_backward(ctx, dh, {}, d, s);
}

}  // namespace hyscale
