// Owned host tensors with reproducible contents, and comparisons that name the worst place.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "core/memory.h"
#include "core/rng.h"
#include "core/tensor.h"

namespace hyscale::test {

// A contiguous host tensor that owns its memory; filled with 0xFF (NaN of every float format) until written.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, Shape shape)
      : bytes_(std::max<size_t>(1, static_cast<size_t>(shape.elements()) * dtype_bytes(dtype)), 0xFF),
        tensor_(bytes_.data(), dtype, Device{}, shape) {}
  explicit HostTensor(Shape shape) : HostTensor(DType::f32, shape) {}
  HostTensor(const HostTensor& o) { *this = o; }
  HostTensor& operator=(const HostTensor& o) {
    bytes_ = o.bytes_;
    tensor_ = o.tensor_.defined() ? Tensor(bytes_.data(), o.tensor_.dtype(), Device{}, o.tensor_.shape()) : Tensor();
    return *this;
  }

  operator const Tensor&() const { return tensor_; }
  const Tensor& t() const { return tensor_; }
  int64_t size() const { return tensor_.elements(); }
  float* f32() const { return tensor_.f32(); }
  int32_t* i32() const { return tensor_.i32(); }
  double* f64() const { return tensor_.data<double>(); }
  float& operator[](int64_t i) { return tensor_.f32()[i]; }
  float operator[](int64_t i) const { return tensor_.f32()[i]; }

 private:
  std::vector<unsigned char> bytes_;
  Tensor tensor_;
};

inline HostTensor random(Shape shape, uint64_t seed, float scale = 1) {
  HostTensor x(shape);
  const Rng rng(seed);
  for (int64_t i = 0; i < x.size(); ++i) x[i] = scale * rng.normal(static_cast<uint64_t>(i));
  return x;
}
inline HostTensor filled(Shape shape, float value) {
  HostTensor x(shape);
  std::fill_n(x.f32(), x.size(), value);
  return x;
}
inline HostTensor ints(Shape shape, std::vector<int32_t> values) {
  HostTensor x(DType::i32, shape);
  HYSCALE_CHECK(static_cast<int64_t>(values.size()) == x.size(), "values for ", to_string(shape));
  if (!values.empty()) std::memcpy(x.t().raw(), values.data(), values.size() * 4);
  return x;
}
inline HostTensor zeros(DType dtype, Shape shape) {
  HostTensor x(dtype, shape);
  std::memset(x.t().raw(), 0, x.t().bytes());
  return x;
}
// Scratch memory of an op, full of NaN.
inline HostTensor workspace(size_t bytes) { return HostTensor(DType::u8, {static_cast<int64_t>(bytes)}); }

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

// ||a - b|| / ||b||; infinite where NaN or infinity sits in one and not in the other. A reference whose elements are below
// 1e-2 on average is compared as if they were 1e-2: it comes from f32 intermediates of order one, which round at 6e-8.
inline double relative_l2(const Tensor& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double x = a.f32()[i];
    if (std::isfinite(x) != std::isfinite(b[i])) return INFINITY;
    if (!std::isfinite(x)) {
      if (!(x == b[i] || (std::isnan(x) && std::isnan(b[i])))) return INFINITY;
      continue;
    }
    difference += (x - b[i]) * (x - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-2 * std::sqrt(static_cast<double>(b.size()) + 1e-300));
}
inline std::vector<double> doubles(const Tensor& t) { return {t.f32(), t.f32() + t.elements()}; }

// Where two tensors differ most, for messages.
inline std::string worst_element(const Tensor& a, const std::vector<double>& b) {
  size_t worst = 0;
  double most = -1;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = std::abs(a.f32()[i] - b[i]);
    if (!(d <= most)) most = d, worst = i;
  }
  return b.empty() ? "no elements" : concat("element ", worst, " of ", to_string(a), ": ", a.f32()[worst], " against ", b[worst]);
}
#define EXPECT_CLOSE(actual, expected, tolerance)                                       \
  EXPECT_LE(::hyscale::test::relative_l2(actual, expected), tolerance) << #actual << ": " \
                                                                       << ::hyscale::test::worst_element(actual, expected)

// Gradient of a scalar function of `x` by central differences in f64 steps of the f64 function `f`.
inline std::vector<double> central_differences(std::vector<double> x, const std::function<double(const std::vector<double>&)>& f,
                                               double step = 1e-5) {
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + step;
    const double above = f(x);
    x[i] = at - step;
    const double below = f(x);
    x[i] = at;
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

}  // namespace hyscale::test
