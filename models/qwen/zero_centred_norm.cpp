#include "models/qwen/zero_centred_norm.h"

#include "kernels/rms_norm/rms_norm.h"

namespace hyscale {

Parameter zero_centred_weight(const std::string& name, int64_t size, ParameterGroup group) {
  return {.name = name, .shape = {size}, .group = group, .init = Init::zeros, .weight_decay = false};
}

void group_norm(Context& ctx, const Tensor& x, const Parameter& weight, float eps, const Tensor& y, const Tensor& rstd) {
  const int64_t width = x.size(1) / rstd.size(0);
  for (int64_t g = 0; g < rstd.size(0); ++g) {
    const int64_t begin = g * width, end = begin + width;
    rms_norm({x.slice(1, begin, end), weight.value.slice(0, begin, end), eps, y.slice(1, begin, end), rstd.select(0, g), ctx.stream, 1});
  }
}

void group_norm_backward(Context& ctx, const Tensor& x, const Parameter& weight, const Tensor& rstd, const Tensor& dy, const Tensor& dx, bool accumulate) {
  const int64_t width = x.size(1) / rstd.size(0);
  for (int64_t g = 0; g < rstd.size(0); ++g) {
    const int64_t begin = g * width, end = begin + width;
    RmsNormBackward n{x.slice(1, begin, end), weight.value.slice(0, begin, end), rstd.select(0, g), dy.slice(1, begin, end), dx.slice(1, begin, end), accumulate,
                      weight.grad.slice(0, begin, end), {}, ctx.stream, 1};
    const ArenaScope scope(*ctx.scratch);
    n.workspace = workspace(ctx, rms_norm_backward_workspace_bytes(n));
    rms_norm_backward(n);
  }
}

}  // namespace hyscale
