#include "kernels/l2_norm/l2_norm.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

// x and dx are columns [from, from + dims) of wider heads.
void expect_as_on_cpu(int64_t tokens, int64_t dims, int64_t from) {
  SCOPED_TRACE(concat(tokens, " tokens, heads of ", dims, " from column ", from));
  const Shape shape{tokens, 3, dims}, wide{tokens, 3, dims + from};
  const Both x = test::in_bf16(test::random(wide, 1)), dy = test::in_bf16(test::random(wide, 2)), y = test::bf16_out(shape), r = test::f32_out({tokens, 3});
  const auto part = [&](const Tensor& t) { return t.slice(2, from, from + dims); };
  test::on_both([&](Device d) { l2_norm({part(x[d]), 1e-6f, y[d], r[d], {}}); });
  EXPECT_AS_ON_CPU(y, test::kBf16);
  EXPECT_AS_ON_CPU(r, test::kF32);
  const Both of_y = test::in_bf16(y.host());  // the same for both forms
  test::on_both([&](Device d) { l2_norm_backward({of_y[d], r[d], part(dy[d]), part(dy[d]), {}}); });
  EXPECT_AS_ON_CPU(dy, test::kBf16);
}

TEST(L2NormCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 257})
    for (int64_t dims : {1, 7, 128, 520})
      for (int64_t from : {0, 8, 3}) expect_as_on_cpu(tokens, dims, from);
}

TEST(L2NormCuda, ARowOfZerosStaysZero) {
  SKIP_WITHOUT_CUDA();
  const Both x = test::in_bf16(test::filled({2, 1, 16}, 0)), y = test::bf16_out({2, 1, 16}), r = test::f32_out({2, 1});
  test::on_both([&](Device d) { l2_norm({x[d], 1e-6f, y[d], r[d], {}}); });
  EXPECT_SAME_AS_ON_CPU(y);
  EXPECT_AS_ON_CPU(r, test::kF32);
}

}  // namespace
}  // namespace hyscale
