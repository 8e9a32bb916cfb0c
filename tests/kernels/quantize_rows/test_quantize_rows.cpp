// Rows as e4m3: rounding against a search of all 256 codes, scales against their definition.
#include "kernels/quantize_rows/quantize_rows.h"

#include <limits>

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

// The nearest code; between two, the one that is even.
uint8_t nearest_code(float x) {
  uint8_t best = 0;
  for (int code = 0; code < 256; ++code) {
    const auto c = static_cast<uint8_t>(code);
    if (std::isnan(e4m3_to_float(c)) || std::signbit(e4m3_to_float(c)) != std::signbit(x)) continue;
    if (std::signbit(e4m3_to_float(best)) != std::signbit(x)) best = c;
    const double here = std::abs(double{x} - e4m3_to_float(c)), there = std::abs(double{x} - e4m3_to_float(best));
    if (here < there || (here == there && c % 2 == 0)) best = c;
  }
  return best;
}

TEST(E4m3, CodesSurviveAndRoundingIsToNearestEven) {
  for (int code = 0; code < 256; ++code)
    if (code % 128 != 127) {
      EXPECT_EQ(float_to_e4m3(e4m3_to_float(static_cast<uint8_t>(code))), code);
    }
  for (int code = 0; code < 126; ++code) {
    const float low = e4m3_to_float(static_cast<uint8_t>(code)), high = e4m3_to_float(static_cast<uint8_t>(code + 1)), middle = (low + high) / 2;
    for (const float x : {middle, std::nextafter(middle, low), std::nextafter(middle, high)})
      for (const float signed_x : {x, -x}) EXPECT_EQ(float_to_e4m3(signed_x), nearest_code(signed_x)) << signed_x;
  }
  EXPECT_EQ(float_to_e4m3(460), 0x7e);
  EXPECT_EQ(float_to_e4m3(-INFINITY), 0xfe);
  EXPECT_TRUE(std::isnan(e4m3_to_float(float_to_e4m3(NAN))));
}

TEST(QuantizeRows, ScalesAreTheLeastPowersOfTwoThatFitAndErrorsAreBounded) {
  const int64_t rows = 300, dims = 37;
  HostTensor x = test::random({rows, dims}, 9), q(DType::f8e4m3, {rows, dims}), scales({rows});
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < dims; ++d) x[i * dims + d] *= std::ldexp(1.0f, static_cast<int>(i % 60) - 30);
  for (int64_t d = 0; d < dims; ++d) x[d] = 0, x[dims + d] = 448, x[2 * dims + d] = std::nextafter(448.0f, 500.0f);
  quantize_rows({x, q, scales, {}});
  EXPECT_EQ(scales[1], 1);
  EXPECT_EQ(scales[2], 2);
  for (int64_t i = 0; i < rows; ++i) {
    float amax = 1e-4f;
    for (int64_t d = 0; d < dims; ++d) amax = std::max(amax, std::abs(x[i * dims + d]));
    int exponent = 0;
    EXPECT_EQ(std::frexp(scales[i], &exponent), 0.5f);
    EXPECT_GE(448 * scales[i], amax);
    EXPECT_LT(224 * scales[i], amax);
    for (int64_t d = 0; d < dims; ++d) {
      const float value = x[i * dims + d], back = scales[i] * e4m3_to_float(q.t().data<uint8_t>()[i * dims + d]);
      ASSERT_LE(std::abs(value - back), std::max(std::ldexp(std::abs(value), -4), std::ldexp(scales[i], -10))) << "row " << i << ", column " << d;
    }
  }
}

TEST(QuantizeRows, NanAndInfinityMakeTheScaleNan) {
  HostTensor x = test::random({3, 8}, 1), q(DType::f8e4m3, {3, 8}), scales({3});
  x[3] = NAN, x[8 + 5] = -INFINITY;
  quantize_rows({x, q, scales, {}});
  EXPECT_TRUE(std::isnan(scales[0]));
  EXPECT_TRUE(std::isnan(scales[1]));
  EXPECT_FALSE(std::isnan(scales[2]));
}

}  // namespace
}  // namespace hyscale
