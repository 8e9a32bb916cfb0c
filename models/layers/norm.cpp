#include "models/layers/norm.h"

#include "kernels/rms_norm/rms_norm.h"

namespace hyscale {

void rms_norm_backward(Context& ctx, const Tensor& x, const Parameter& weight, const Tensor& rstd, const Tensor& dy, const Tensor& dx, bool accumulate) {
  RmsNormBackward n{x, weight.value, rstd, dy, dx, accumulate, weight.grad, {}, ctx.stream};
  const ArenaScope scope(*ctx.scratch);
  n.workspace = workspace(ctx, rms_norm_backward_workspace_bytes(n));
  rms_norm_backward(n);
}

}  // namespace hyscale
