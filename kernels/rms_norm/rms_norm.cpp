#include "kernels/rms_norm/rms_norm.h"

#include <cmath>

#include "kernels/common/op.h"
#include "kernels/common/residual_types.h"
#include "kernels/common/rows.h"

namespace hyscale {

void rms_norm_cuda(const RmsNorm&);
void rms_norm_backward_cuda(const RmsNormBackward&);

namespace {

void rms_norm_ref(const RmsNorm& n) {
  const int64_t rows = n.x.size(0), columns = n.x.size(1);
  const float* weight = n.weight.defined() ? n.weight.f32() : nullptr;
#pragma omp parallel for
  for (int64_t t = 0; t < rows; ++t) {
    const float* x = row_of(n.x, t);
    float* y = row_of(n.y, t);
    double squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < columns; ++c) squares += double{x[c]} * x[c];
    const float rstd = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(columns) + n.eps));
    for (int64_t c = 0; c < columns; ++c) y[c] = (n.weight_offset + (weight ? weight[c] : 1)) * (x[c] * rstd);
    if (n.rstd.defined()) n.rstd.f32()[t] = rstd;
  }
}

void rms_norm_backward_ref(const RmsNormBackward& n) {
  const int64_t rows = n.x.size(0), columns = n.x.size(1);
  const float* weight = n.weight.defined() ? n.weight.f32() : nullptr;
  if (n.dweight.defined())
    add_column_sums(n.dweight.f32(), rows, columns,
                    [&](int64_t t, int64_t c) { return row_of(n.dy, t)[c] * (row_of(n.x, t)[c] * n.rstd.f32()[t]); });
#pragma omp parallel for
  for (int64_t t = 0; t < rows; ++t) {
    const float *x = row_of(n.x, t), *dy = row_of(n.dy, t);
    float* dx = row_of(n.dx, t);
    const float rstd = n.rstd.f32()[t];
    double dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < columns; ++c) dot += double{dy[c] * (n.weight_offset + (weight ? weight[c] : 1))} * (x[c] * rstd);
    const float mean = static_cast<float>(dot / static_cast<double>(columns));
    for (int64_t c = 0; c < columns; ++c) {
      const float d = rstd * (dy[c] * (n.weight_offset + (weight ? weight[c] : 1)) - x[c] * rstd * mean);
      dx[c] = n.accumulate_dx ? dx[c] + d : d;
    }
  }
}

}  // namespace

void rms_norm(const RmsNorm& n) {
  check_shape(n.y, "y", n.x.shape());
  check_residual_types("rms_norm", n.x, n.y);
  if (n.weight.defined()) check_shape(n.weight, "weight", {n.x.size(1)});
  if (n.rstd.defined()) check_tensor(n.rstd, "rstd", DType::f32, {n.x.size(0)});
  HYSCALE_DISPATCH("rms_norm", n.x.device(), rms_norm_ref(n), rms_norm_cuda(n));
}

void rms_norm_backward(const RmsNormBackward& n) {
  check_shape(n.dy, "dy", n.x.shape());
  check_shape(n.dx, "dx", n.x.shape());
  check_residual_types("rms_norm_backward", n.x, n.dy);
  HYSCALE_CHECK(n.dx.dtype() == n.x.dtype() || n.dx.dtype() == n.dy.dtype(), "dx is ", dtype_name(n.dx.dtype()), "; expected the dtype of x, ", dtype_name(n.x.dtype()),
                ", or that of dy, ", dtype_name(n.dy.dtype()));
  check_tensor(n.rstd, "rstd", DType::f32, {n.x.size(0)});
  if (n.dweight.defined()) check_tensor(n.dweight, "dweight", DType::f32, {n.x.size(1)});
  HYSCALE_DISPATCH("rms_norm_backward", n.x.device(), rms_norm_backward_ref(n), rms_norm_backward_cuda(n));
}

size_t rms_norm_backward_workspace_bytes(const RmsNormBackward& n) {
  // Partial column sums of 256 row blocks, so that the order of the sum is fixed.
  return n.x.device().is_cpu() || !n.dweight.defined() ? 0 : aligned_bytes(static_cast<size_t>(256 * n.x.size(1)) * sizeof(float));
}

}  // namespace hyscale
