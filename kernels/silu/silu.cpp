#include "kernels/silu/silu.h"

#include <cmath>

#include "kernels/common/op.h"

namespace hyscale {

void silu_cuda(const Silu&);
void silu_backward_cuda(const SiluBackward&);

namespace {

void silu_ref(const Silu& s) {
  const int64_t n = s.x.elements();
  const float* x = s.x.f32();
  float* y = s.y.f32();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] / (1 + std::exp(-x[i]));
}

void silu_backward_ref(const SiluBackward& s) {
  const int64_t n = s.x.elements();
  const float *x = s.x.f32(), *dy = s.dy.f32();
  float* dx = s.dx.f32();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) {
    const float sigmoid = 1 / (1 + std::exp(-x[i]));
    dx[i] = dy[i] * sigmoid * (1 + x[i] * (1 - sigmoid));
  }
}

}  // namespace

void silu(const Silu& s) {
  HYSCALE_CHECK(s.x.is_contiguous() && s.y.is_contiguous(), "x ", to_string(s.x), " and y ", to_string(s.y), " are contiguous");
  check_shape(s.y, "y", s.x.shape());
  HYSCALE_DISPATCH("silu", s.x.device(), silu_ref(s), silu_cuda(s));
}

void silu_backward(const SiluBackward& s) {
  HYSCALE_CHECK(s.x.is_contiguous() && s.dy.is_contiguous() && s.dx.is_contiguous(), "x ", to_string(s.x), ", dy and dx are contiguous");
  check_shape(s.dy, "dy", s.x.shape());
  check_shape(s.dx, "dx", s.x.shape());
  HYSCALE_DISPATCH("silu_backward", s.x.device(), silu_backward_ref(s), silu_backward_cuda(s));
}

}  // namespace hyscale
