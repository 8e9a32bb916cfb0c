#include "kernels/rms_norm/rms_norm.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

// x, y, dy and dx are columns [from, from + columns) of wider rows.
void expect_as_on_cpu(int64_t rows, int64_t columns, int64_t from, bool accumulate, bool with_weight_gradient, float offset = 0) {
  SCOPED_TRACE(concat(rows, " rows of ", columns, " from column ", from, accumulate ? ", accumulating" : ""));
  const Shape wide{rows, columns + from};
  const Both x = test::in_bf16(test::random(wide, 1)), w = test::in_bf16(test::random({columns}, 2)), dy = test::in_bf16(test::random(wide, 3));
  const Both y = test::in_bf16(test::filled(wide, 5)), dx = test::in_bf16(test::random(wide, 4)), rstd = test::f32_out({rows}), dw = test::as_is(test::random({columns}, 5));
  const auto part = [&](const Tensor& t) { return t.slice(1, from, from + columns); };
  const auto backward = [&](Device d) {
    return RmsNormBackward{part(x[d]), w[d], rstd[d], part(dy[d]), part(dx[d]), accumulate, with_weight_gradient ? dw[d] : Tensor(), {}, {}, offset};
  };
  test::on_both([&](Device d) { rms_norm({part(x[d]), w[d], 1e-5f, part(y[d]), rstd[d], {}, offset}); });
  test::on_both(backward, rms_norm_backward_workspace_bytes, rms_norm_backward);
  EXPECT_AS_ON_CPU(y, test::kBf16);
  EXPECT_AS_ON_CPU(rstd, test::kF32);
  EXPECT_AS_ON_CPU(dx, test::kBf16);
  EXPECT_AS_ON_CPU(dw, test::kF32);
}

TEST(RmsNormCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t rows : {0, 1, 3, 257})
    for (int64_t columns : {1, 7, 64, 2056})
      for (int64_t from : {0, 8, 3}) expect_as_on_cpu(rows, columns, from, from == 8, from != 3);
}

// Zero-centred weights, and one of four groups of a wider row.
TEST(RmsNormCuda, WeightsAroundOneAreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t columns : {7, 128, 2560}) expect_as_on_cpu(257, columns, columns, false, true, 1);
}

// x and dx are an f32 stream, what lies between them is bf16.
TEST(RmsNormCuda, OfAnF32StreamIsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t rows : {0, 1, 3, 257})
    for (int64_t columns : {1, 7, 64, 2056})
      for (bool accumulate : {false, true}) {
        SCOPED_TRACE(concat(rows, " rows of ", columns, accumulate ? ", accumulating" : ""));
        const Both x = test::as_is(test::random({rows, columns}, 1)), w = test::in_bf16(test::random({columns}, 2)), dy = test::in_bf16(test::random({rows, columns}, 3));
        const Both y = test::bf16_out({rows, columns}), dx = test::as_is(test::random({rows, columns}, 4)), rstd = test::f32_out({rows}), dw = test::as_is(test::random({columns}, 5));
        const Both narrow = test::in_bf16(test::random({rows, columns}, 4));
        test::on_both([&](Device d) { rms_norm({x[d], w[d], 1e-5f, y[d], rstd[d], {}}); });
        test::on_both([&](Device d) { rms_norm_backward({x[d], w[d], rstd[d], dy[d], narrow[d], accumulate, {}, {}, {}}); });
        test::on_both([&](Device d) { return RmsNormBackward{x[d], w[d], rstd[d], dy[d], dx[d], accumulate, dw[d], {}, {}}; }, rms_norm_backward_workspace_bytes, rms_norm_backward);
        for (const Both* rounded : {&y, &narrow}) EXPECT_AS_ON_CPU(*rounded, test::kBf16);
        for (const Both* exact : {&rstd, &dx, &dw}) EXPECT_AS_ON_CPU(*exact, test::kF32);
      }
}

TEST(RmsNormCuda, WithoutAWeightIsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t columns : {7, 512, 2056}) {
    const Both x = test::in_bf16(test::random({300, columns}, 1)), dy = test::in_bf16(test::random({300, columns}, 3));
    const Both y = test::bf16_out({300, columns}), dx = test::bf16_out({300, columns}), rstd = test::f32_out({300});
    test::on_both([&](Device d) {
      rms_norm({x[d], {}, 1e-5f, y[d], rstd[d], {}});
      rms_norm_backward({x[d], {}, rstd[d], dy[d], dx[d], false, {}, {}, {}});
    });
    EXPECT_AS_ON_CPU(y, test::kBf16);
    EXPECT_AS_ON_CPU(dx, test::kBf16);
  }
}

}  // namespace
}  // namespace hyscale
