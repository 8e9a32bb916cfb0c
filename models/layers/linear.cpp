#include "models/layers/linear.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"

namespace hyscale {
namespace {

Tensor converted(Context& ctx, const Tensor& x, DType to) {
  if (x.dtype() == to) return x;
  const Tensor y = ctx.scratch->allocate(to, x.shape());
  cast(y, x, ctx.stream);
  return y;
}

}  // namespace

void scratch_gemm(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& c, bool transpose_a, bool transpose_b, float alpha, float beta) {
  const ArenaScope scope(*ctx.scratch);
  // The CPU computes in f32 and needs none; on meta the activations' dtype tells which device is meant.
  const Tensor space = ctx.activation == DType::bf16 || ctx.device.is_cuda() ? workspace(ctx, kGemmWorkspaceBytes) : Tensor();
  gemm({.a = a, .b = b, .c = c, .transpose_a = transpose_a, .transpose_b = transpose_b, .alpha = alpha, .beta = beta, .workspace = space,
        .stream = ctx.stream});
}

void linear(Context& ctx, const Tensor& x, const Parameter& w, const Tensor& y) {
  const ArenaScope scope(*ctx.scratch);
  scratch_gemm(ctx, converted(ctx, x, w.value.dtype()), w.value, y, false, true);
}

void linear_dgrad(Context& ctx, const Tensor& dy, const Parameter& w, const Tensor& dx, bool accumulate) {
  const ArenaScope scope(*ctx.scratch);
  if (dx.dtype() == w.value.dtype() || !accumulate)
    return scratch_gemm(ctx, converted(ctx, dy, w.value.dtype()), w.value, dx, false, false, 1, accumulate ? 1 : 0);
  // f32 product added to narrower memory.
  const Tensor product = ctx.scratch->allocate(w.value.dtype(), dx.shape()), narrow = ctx.scratch->allocate(dx.dtype(), dx.shape());
  scratch_gemm(ctx, converted(ctx, dy, w.value.dtype()), w.value, product, false, false);
  cast(narrow, product, ctx.stream);
  add(dx, dx, narrow, ctx.stream);
}

void linear_wgrad(Context& ctx, const Tensor& dy, const Tensor& x, const Parameter& w, float alpha) {
  const ArenaScope scope(*ctx.scratch);
  const DType wide = dy.dtype() == x.dtype() ? dy.dtype() : DType::f32;
  scratch_gemm(ctx, converted(ctx, dy, wide), converted(ctx, x, wide), w.grad, true, false, alpha, 1);
}

Tensor narrowed(Context& ctx, const Tensor& x) { return converted(ctx, x, ctx.activation); }

Tensor heads_first(const Tensor& x) {
  return Tensor(x.raw(), x.dtype(), x.device(), {x.size(1), x.size(0), x.size(2)}, {x.stride(1), x.stride(0), x.stride(2)});
}

}  // namespace hyscale
