#include "kernels/rope/rope.h"

#include <algorithm>
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

std::vector<float> yarn_inverse_frequencies(float theta, int64_t rotary_dim, const YarnScaling& y) {
  constexpr double kPi = 3.14159265358979323846;
  // The pair that turns `turns` times within the original context.
  const auto pair_of = [&](double turns) {
    return static_cast<double>(rotary_dim) * std::log(y.original_positions / (2 * kPi * turns)) / (2 * std::log(double{theta}));
  };
  const double low = std::max(std::floor(pair_of(y.beta_fast)), 0.0), high = std::min(std::ceil(pair_of(y.beta_slow)), static_cast<double>(rotary_dim - 1));
  std::vector<float> inverse = rope_inverse_frequencies(theta, rotary_dim);
  for (size_t i = 0; i < inverse.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / std::max(high - low, 1e-3), 0.0, 1.0);
    inverse[i] = static_cast<float>(inverse[i] / y.factor * ramp + inverse[i] * (1 - ramp));
  }
  return inverse;
}

}  // namespace hyscale
