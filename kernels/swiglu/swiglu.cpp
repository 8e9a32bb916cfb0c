#include "kernels/swiglu/swiglu.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/op.h"

namespace hyscale {

void swiglu_cuda(const Swiglu&);
void swiglu_backward_cuda(const SwigluBackward&);

namespace {

void swiglu_ref(const Swiglu& s) {
  const int64_t rows = s.y.size(0), width = s.y.size(1);
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float *gate = s.gate_up.f32() + r * 2 * width, *up = gate + width;
    float* y = s.y.f32() + r * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float g = std::min(gate[i], s.limit), u = std::clamp(up[i], -s.limit, s.limit);
      y[i] = g / (1 + std::exp(-g)) * u;
    }
  }
}

void swiglu_backward_ref(const SwigluBackward& s) {
  const int64_t rows = s.dy.size(0), width = s.dy.size(1);
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float *gate = s.gate_up.f32() + r * 2 * width, *up = gate + width, *dy = s.dy.f32() + r * width;
    float *dgate = s.dgate_up.f32() + r * 2 * width, *dup = dgate + width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float g = std::min(gate[i], s.limit), u = std::clamp(up[i], -s.limit, s.limit), sigmoid = 1 / (1 + std::exp(-g));
      const bool gate_moves = gate[i] <= s.limit, up_moves = std::abs(up[i]) <= s.limit;
      dgate[i] = gate_moves ? dy[i] * u * sigmoid * (1 + g * (1 - sigmoid)) : 0;
      dup[i] = up_moves ? dy[i] * g * sigmoid : 0;
    }
  }
}

void check(const Tensor& gate_up, const Tensor& y, float limit) {
  HYSCALE_CHECK(gate_up.rank() == 2 && y.rank() == 2 && gate_up.size(0) == y.size(0) && gate_up.size(1) == 2 * y.size(1), "gate_up ",
                to_string(gate_up), ", y ", to_string(y));
  HYSCALE_CHECK(limit > 0, "limit ", limit);
  HYSCALE_CHECK(gate_up.is_contiguous() && y.is_contiguous(), "gate_up and y are contiguous");
}

}  // namespace

void swiglu(const Swiglu& s) {
  check(s.gate_up, s.y, s.limit);
  HYSCALE_DISPATCH("swiglu", s.y.device(), swiglu_ref(s), swiglu_cuda(s));
}

void swiglu_backward(const SwigluBackward& s) {
  check(s.gate_up, s.dy, s.limit);
  check_shape(s.dgate_up, "dgate_up", s.gate_up.shape());
  HYSCALE_DISPATCH("swiglu_backward", s.dy.device(), swiglu_backward_ref(s), swiglu_backward_cuda(s));
}

}  // namespace hyscale
