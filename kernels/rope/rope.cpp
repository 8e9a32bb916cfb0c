#include "kernels/rope/rope.h"

#include <cmath>

#include "kernels/common/op.h"

namespace hyscale {

void rope_cuda(const Rope&);

namespace {

void rope_ref(const Rope& r) {
  const int64_t tokens = r.x.size(0), heads = r.x.size(1), half = r.x.size(2) / 2;
  const int64_t step = r.interleaved ? 2 : 1, partner = r.interleaved ? 1 : half;
#pragma omp parallel
  {
    std::vector<float> cosines(static_cast<size_t>(half)), sines(static_cast<size_t>(half));
#pragma omp for
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(r.positions.i32()[t]) * r.inv_freq.f32()[i];
        cosines[static_cast<size_t>(i)] = std::cos(angle);
        sines[static_cast<size_t>(i)] = r.inverse ? -std::sin(angle) : std::sin(angle);
      }
      for (int64_t h = 0; h < heads; ++h) {
        float* x = r.x.f32() + t * r.x.stride(0) + h * r.x.stride(1);
        for (int64_t i = 0; i < half; ++i) {
          float &a = x[step * i], &b = x[step * i + partner];
          const float c = cosines[static_cast<size_t>(i)], s = sines[static_cast<size_t>(i)], old = a;
          a = old * c - b * s;
          b = old * s + b * c;
        }
      }
    }
  }
}

}  // namespace

void rope(const Rope& r) {
  HYSCALE_CHECK(r.x.rank() == 3 && r.x.size(2) % 2 == 0 && (r.x.size(2) == 0 || r.x.stride(2) == 1), "x ", to_string(r.x));
  check_tensor(r.positions, "positions", DType::i32, {r.x.size(0)});
  check_tensor(r.inv_freq, "inv_freq", DType::f32, {r.x.size(2) / 2});
  HYSCALE_DISPATCH("rope", r.x.device(), rope_ref(r), rope_cuda(r));
}

std::vector<float> rope_inverse_frequencies(float theta, int64_t rotary_dim) {
  std::vector<float> inverse(static_cast<size_t>(rotary_dim / 2));
  for (size_t i = 0; i < inverse.size(); ++i)
    inverse[i] = 1.0f / std::pow(theta, static_cast<float>(2 * i) / static_cast<float>(rotary_dim));
  return inverse;
}

}  // namespace hyscale
