#include "kernels/layer_norm/layer_norm.h"

#include <cmath>

#include "kernels/common/op.h"
#include "kernels/common/rows.h"

namespace hyscale {

void layer_norm_cuda(const LayerNorm&);
void layer_norm_backward_cuda(const LayerNormBackward&);

namespace {

void layer_norm_ref(const LayerNorm& n) {
  const int64_t rows = n.x.size(0), columns = n.x.size(1);
#pragma omp parallel for
  for (int64_t t = 0; t < rows; ++t) {
    const float* x = row_of(n.x, t);
    float* y = row_of(n.y, t);
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < columns; ++c) sum += x[c];
    const double mean = sum / static_cast<double>(columns);
    for (int64_t c = 0; c < columns; ++c) squares += (x[c] - mean) * (x[c] - mean);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(columns) + n.eps);
    for (int64_t c = 0; c < columns; ++c)
      y[c] = static_cast<float>((x[c] - mean) * rstd) * n.weight.f32()[c] + n.bias.f32()[c];
    n.mean.f32()[t] = static_cast<float>(mean);
    n.rstd.f32()[t] = static_cast<float>(rstd);
  }
}

void layer_norm_backward_ref(const LayerNormBackward& n) {
  const int64_t rows = n.x.size(0), columns = n.x.size(1);
  const auto normalised = [&](int64_t t, int64_t c) { return (row_of(n.x, t)[c] - n.mean.f32()[t]) * n.rstd.f32()[t]; };
  add_column_sums(n.dweight.f32(), rows, columns, [&](int64_t t, int64_t c) { return row_of(n.dy, t)[c] * normalised(t, c); });
  add_column_sums(n.dbias.f32(), rows, columns, [&](int64_t t, int64_t c) { return row_of(n.dy, t)[c]; });
#pragma omp parallel for
  for (int64_t t = 0; t < rows; ++t) {
    const float* dy = row_of(n.dy, t);
    float* dx = row_of(n.dx, t);
    double sum = 0, dot = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const double g = double{dy[c]} * n.weight.f32()[c];
      sum += g;
      dot += g * normalised(t, c);
    }
    const double mean = sum / static_cast<double>(columns), mean_dot = dot / static_cast<double>(columns);
    for (int64_t c = 0; c < columns; ++c)
      dx[c] = static_cast<float>(n.rstd.f32()[t] * (double{dy[c]} * n.weight.f32()[c] - mean - normalised(t, c) * mean_dot));
  }
}

}  // namespace

void layer_norm(const LayerNorm& n) {
  check_shape(n.y, "y", n.x.shape());
  check_shape(n.weight, "weight", {n.x.size(1)});
  check_shape(n.bias, "bias", {n.x.size(1)});
  check_tensor(n.mean, "mean", DType::f32, {n.x.size(0)});
  check_tensor(n.rstd, "rstd", DType::f32, {n.x.size(0)});
  HYSCALE_DISPATCH("layer_norm", n.x.device(), layer_norm_ref(n), layer_norm_cuda(n));
}

void layer_norm_backward(const LayerNormBackward& n) {
  check_shape(n.dy, "dy", n.x.shape());
  check_shape(n.dx, "dx", n.x.shape());
  check_tensor(n.dweight, "dweight", DType::f32, {n.x.size(1)});
  check_tensor(n.dbias, "dbias", DType::f32, {n.x.size(1)});
  HYSCALE_DISPATCH("layer_norm_backward", n.x.device(), layer_norm_backward_ref(n), layer_norm_backward_cuda(n));
}

size_t layer_norm_backward_workspace_bytes(const LayerNormBackward& n) {
  // Partial column sums of 256 row blocks for weight and bias.
  return n.x.device().is_cpu() ? 0 : aligned_bytes(static_cast<size_t>(512 * n.x.size(1)) * sizeof(float));
}

}  // namespace hyscale
