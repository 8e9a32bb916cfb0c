#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/tensor.h"

namespace hyscale {
namespace {

TEST(Tensor, SlicesAndSelectsKeepStrides) {
  std::vector<float> data(24);
  Tensor t(data.data(), DType::f32, {}, {2, 3, 4});
  Tensor s = t.slice(1, 1, 3);
  EXPECT_EQ(s.shape(), Shape({2, 2, 4}));
  EXPECT_EQ(s.f32(), data.data() + 4);
  EXPECT_EQ(s.stride(0), 12);
  EXPECT_FALSE(s.is_contiguous());
  Tensor one = t.select(0, 1);
  EXPECT_EQ(one.shape(), Shape({3, 4}));
  EXPECT_EQ(one.f32(), data.data() + 12);
  EXPECT_TRUE(one.is_contiguous());
}

TEST(Tensor, ViewsFillOneUnknownDimension) {
  Tensor t(nullptr, DType::bf16, {DeviceType::meta}, {6, 4});
  EXPECT_EQ(t.view({-1, 8}).shape(), Shape({3, 8}));
  EXPECT_EQ(t.split_last(2, 2).shape(), Shape({6, 2, 2}));
  EXPECT_THROW(t.view({5, 5}), InternalError);
  EXPECT_THROW(t.slice(0, 1, 2).slice(1, 0, 2).view({2}).slice(0, 0, 3), InternalError);
}

TEST(Tensor, SizesBeyond32Bits) {
  Tensor t(nullptr, DType::bf16, {DeviceType::meta}, {int64_t{1} << 20, 2049});
  EXPECT_EQ(t.elements(), (int64_t{1} << 20) * 2049);
  EXPECT_EQ(t.bytes(), (size_t{1} << 21) * 2049);
}

TEST(Tensor, ChecksNameTheTensor) {
  Tensor t(nullptr, DType::f32, {DeviceType::meta}, {2, 3});
  check_tensor(t, "x", DType::f32, {-1, 3});
  try {
    check_tensor(t, "x", DType::f32, {-1, 4});
    FAIL();
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("x is f32[2, 3] on meta, expected shape [-1, 4]"), std::string::npos) << e.what();
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(bf16_to_float(float_to_bf16(1.00390625f)), 1.0f);         // halfway: to even
  EXPECT_EQ(bf16_to_float(float_to_bf16(1.01171875f)), 1.015625f);    // halfway: to even, upwards
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::nanf("")))));
  EXPECT_TRUE(std::isinf(bf16_to_float(float_to_bf16(3.4e38f))));
}

}  // namespace
}  // namespace hyscale
