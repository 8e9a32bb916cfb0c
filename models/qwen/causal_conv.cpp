#include "models/qwen/causal_conv.h"

#include "kernels/short_conv/short_conv.h"
#include "models/layers/token_reach.h"

namespace hyscale {

Tensor causal_conv(Context& ctx, const Tensor& x, const Tensor& weight, int64_t dilation, const Tensor& y) {
  const Tensor reach = reach_rows(ctx, x);
  const ArenaScope scope(*ctx.scratch);
  // Rows of the halo see a shortened history; nobody reads what is computed for them.
  const Tensor all = reaches_over(ctx) ? ctx.scratch->allocate(y.dtype(), reach.shape()) : y;
  short_conv({reach, weight, ctx.sequence->reach.history, dilation, all, ctx.stream});
  if (reaches_over(ctx)) take_own_rows(ctx, all, y);
  return reach;
}

void causal_conv_backward(Context& ctx, const Tensor& reach, const Tensor& weight, int64_t dilation, const Tensor& dy, const Tensor& dx, const Tensor& dweight) {
  const ArenaScope scope(*ctx.scratch);
  const bool over = reaches_over(ctx);
  const Tensor dy_reach = over ? ctx.scratch->allocate_zeroed(dy.dtype(), reach.shape(), ctx.stream) : dy;
  const Tensor dreach = over ? ctx.scratch->allocate(dx.dtype(), reach.shape()) : dx;
  if (over) place_own_rows(ctx, dy, dy_reach);
  {
    ShortConvBackward c{reach, weight, ctx.sequence->reach.history, dilation, dy_reach, dreach, dweight, {}, ctx.stream};
    const ArenaScope inner(*ctx.scratch);
    c.workspace = workspace(ctx, short_conv_backward_workspace_bytes(c));
    short_conv_backward(c);
  }
  if (!over) return;
  zero(dx, ctx.stream);
  fold_reach(ctx, dreach, dx);
}

}  // namespace hyscale
