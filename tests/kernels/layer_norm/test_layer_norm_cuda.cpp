#include "kernels/layer_norm/layer_norm.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

void expect_as_on_cpu(int64_t rows, int64_t columns, int64_t from, DType gradient) {
  SCOPED_TRACE(concat(rows, " rows of ", columns, " from column ", from, ", dy ", dtype_name(gradient)));
  const Both x = test::in_bf16(test::random({rows, columns + from}, 1)), w = test::in_bf16(test::random({columns}, 2)), bias = test::in_bf16(test::random({columns}, 3));
  const Both y = test::bf16_out({rows, columns}), mean = test::f32_out({rows}), rstd = test::f32_out({rows}), dy(test::random({rows, columns}, 4), gradient);
  const Both dx = test::bf16_out({rows, columns}), dw = test::as_is(test::random({columns}, 5)), dbias = test::as_is(test::random({columns}, 6));
  const auto part = [&](Device d) { return x[d].slice(1, from, from + columns); };
  const auto backward = [&](Device d) { return LayerNormBackward{part(d), w[d], mean[d], rstd[d], dy[d], dx[d], dw[d], dbias[d], {}, {}}; };
  test::on_both([&](Device d) { layer_norm({part(d), w[d], bias[d], 1e-6f, y[d], mean[d], rstd[d], {}}); });
  test::on_both(backward, layer_norm_backward_workspace_bytes, layer_norm_backward);
  EXPECT_AS_ON_CPU(y, test::kBf16);
  EXPECT_AS_ON_CPU(mean, test::kF32);
  EXPECT_AS_ON_CPU(rstd, test::kF32);
  EXPECT_AS_ON_CPU(dx, test::kBf16);
  EXPECT_AS_ON_CPU(dw, test::kF32);
  EXPECT_AS_ON_CPU(dbias, test::kF32);
}

TEST(LayerNormCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t rows : {0, 1, 3, 257})
    for (int64_t columns : {2, 7, 128, 1000})
      for (int64_t from : {0, 5}) expect_as_on_cpu(rows, columns, from, from ? DType::f32 : DType::bf16);
}

}  // namespace
}  // namespace hyscale
