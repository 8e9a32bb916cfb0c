#include "kernels/l2_norm/l2_norm.h"

#include <cmath>

#include "kernels/common/op.h"

namespace hyscale {

void l2_norm_cuda(const L2Norm&);
void l2_norm_backward_cuda(const L2NormBackward&);

namespace {

float* row(const Tensor& t, int64_t token, int64_t head) { return t.f32() + token * t.stride(0) + head * t.stride(1); }

void l2_norm_ref(const L2Norm& n) {
  const int64_t tokens = n.x.size(0), heads = n.x.size(1), dims = n.x.size(2);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const float* x = row(n.x, t, h);
      float* y = row(n.y, t, h);
      double squares = n.eps;
      for (int64_t d = 0; d < dims; ++d) squares += double{x[d]} * x[d];
      const float r = n.r.f32()[t * heads + h] = static_cast<float>(1 / std::sqrt(squares));
      for (int64_t d = 0; d < dims; ++d) y[d] = x[d] * r;
    }
}

void l2_norm_backward_ref(const L2NormBackward& n) {
  const int64_t tokens = n.y.size(0), heads = n.y.size(1), dims = n.y.size(2);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const float *y = row(n.y, t, h), *dy = row(n.dy, t, h);
      const float r = n.r.f32()[t * heads + h];
      float* dx = row(n.dx, t, h);
      double dot = 0;
      for (int64_t d = 0; d < dims; ++d) dot += double{y[d]} * dy[d];
      for (int64_t d = 0; d < dims; ++d) dx[d] = r * (dy[d] - y[d] * static_cast<float>(dot));
    }
}

}  // namespace

void l2_norm(const L2Norm& n) {
  HYSCALE_CHECK(n.x.rank() == 3, "x ", to_string(n.x));
  check_shape(n.y, "y", n.x.shape());
  check_tensor(n.r, "r", DType::f32, {n.x.size(0), n.x.size(1)});
  HYSCALE_DISPATCH("l2_norm", n.x.device(), l2_norm_ref(n), l2_norm_cuda(n));
}

void l2_norm_backward(const L2NormBackward& n) {
  check_shape(n.dy, "dy", n.y.shape());
  check_shape(n.dx, "dx", n.y.shape());
  check_tensor(n.r, "r", DType::f32, {n.y.size(0), n.y.size(1)});
  HYSCALE_DISPATCH("l2_norm_backward", n.y.device(), l2_norm_backward_ref(n), l2_norm_backward_cuda(n));
}

}  // namespace hyscale
