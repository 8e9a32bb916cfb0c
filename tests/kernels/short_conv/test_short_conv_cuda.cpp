#include "kernels/short_conv/short_conv.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

void expect_as_on_cpu(const std::vector<int32_t>& lengths, int64_t channels, int64_t taps, int64_t dilation, DType dtype, DType weight_type) {
  std::vector<int32_t> positions;
  for (int32_t n : lengths)
    for (int32_t i = 0; i < n; ++i) positions.push_back(i);
  const int64_t tokens = static_cast<int64_t>(positions.size());
  SCOPED_TRACE(concat(tokens, " tokens, ", channels, " channels, ", taps, " taps ", dilation, " apart, ", dtype_name(dtype), " and ", dtype_name(weight_type)));
  const Shape shape{tokens, channels};
  const Both x(test::random(shape, 1), dtype), w(test::random({channels, taps}, 2), weight_type), at = test::as_is(test::ints({tokens}, positions)), dy(test::random(shape, 3), dtype);
  const Both y(test::HostTensor(shape), dtype), dx(test::HostTensor(shape), dtype), dw = test::as_is(test::random({channels, taps}, 4));
  const auto backward = [&](Device d) { return ShortConvBackward{x[d], w[d], at[d], dilation, dy[d], dx[d], dw[d], {}, {}}; };
  test::on_both([&](Device d) { short_conv({x[d], w[d], at[d], dilation, y[d], {}}); });
  test::on_both(backward, short_conv_backward_workspace_bytes, short_conv_backward);
  const double tolerance = dtype == DType::f32 ? test::kF32 : test::kBf16;
  EXPECT_AS_ON_CPU(y, tolerance);
  EXPECT_AS_ON_CPU(dx, tolerance);
  EXPECT_AS_ON_CPU(dw, test::kF32);
}

TEST(ShortConvCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{}, {1}, {5, 0, 1, 12}, {700, 3, 41}})
    for (const auto& [channels, taps, dilation] : {std::tuple{int64_t{7}, int64_t{4}, int64_t{1}}, {264, 4, 1}, {264, 4, 3}, {40, 3, 2}, {24, 7, 3}, {8, 1, 1}})
      for (DType dtype : {DType::f32, DType::bf16}) {
        expect_as_on_cpu(lengths, channels, taps, dilation, dtype, dtype);
        expect_as_on_cpu(lengths, channels, taps, dilation, dtype, DType::f32);
      }
}

}  // namespace
}  // namespace hyscale
