#include "kernels/hyper_connection/hyper_connection.h"

#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;
using test::HostTensor;

TEST(HyperConnectionCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 7, 300})
    for (int64_t width : {5, 64, 1032})
      for (bool reads_only : {false, true}) {
        SCOPED_TRACE(concat(tokens, " tokens of 4 x ", width, ", reads only ", reads_only));
        const int64_t n = reads_only ? 4 : 24;
        const Both x = test::in_bf16(test::random({tokens, 4, width}, 1)), y = test::in_bf16(test::random({tokens, width}, 2)), dout = test::in_bf16(test::random({tokens, 4, width}, 3));
        const Both u = test::as_is(test::random({tokens, n}, 4)), base = test::as_is(test::random({n}, 5)), scale = test::as_is(test::random({reads_only ? 1 : 3}, 6));
        const Both rstd = test::f32_out({tokens}), pre = test::f32_out({tokens, 4}), post = test::f32_out({tokens, 4}), comb = test::f32_out({tokens, 4, 4});
        const Both h = test::bf16_out({tokens, width}), all = test::bf16_out({tokens, width}), out = test::bf16_out({tokens, 4, width});
        const Both dx = test::bf16_out({tokens, 4, width}), dy = test::bf16_out({tokens, width}), dpre = test::f32_out({tokens, 4});
        const Both dpost = test::f32_out({tokens, 4}), dcomb = test::f32_out({tokens, 4, 4}), du = test::f32_out({tokens, n}), squares = test::f32_out({tokens});
        const Both dbase = test::as_is(test::filled({n}, 1)), dscale = test::as_is(test::filled({reads_only ? 1 : 3}, 1));
        const auto given = [&](const Both& b, Device d) { return reads_only ? Tensor() : b[d]; };
        test::on_both([&](Device d) {
          hc_coefficients({x[d], u[d], base[d], scale[d], 1e-6f, 1e-6f, 20, rstd[d], pre[d], given(post, d), given(comb, d), {}});
          hc_read({x[d], pre[d], h[d], {}});
          hc_read({x[d], {}, all[d], {}});
          hc_read_backward({x[d], y[d], dpre[d], {}});
          if (reads_only) return;
          hc_write({x[d], y[d], post[d], comb[d], out[d], {}});
          hc_write_backward({x[d], y[d], post[d], comb[d], dout[d], dx[d], dy[d], dpost[d], dcomb[d], {}});
        });
        const auto op = [&](Device d) {
          return HcCoefficientsBackward{u[d], base[d], scale[d], rstd[d], 4 * width, 1e-6f, 20, dpre[d], given(dpost, d), given(dcomb, d), du[d], squares[d], dbase[d], dscale[d], {}, {}};
        };
        test::on_both([&](Device d) { return hc_coefficients_backward_workspace_bytes(op(d)); },
                      [&](Device d, const Tensor& space) {
                        HcCoefficientsBackward b = op(d);
                        b.workspace = space;
                        hc_coefficients_backward(b);
                        if (!reads_only) hc_input_gradient({x[d], pre[d], y[d], squares[d], dx[d], {}});
                      });
        for (const Both* f32 : {&rstd, &pre, &dpre}) EXPECT_AS_ON_CPU(*f32, 1e-4);
        for (const Both* f32 : {&du, &squares, &dbase, &dscale}) EXPECT_AS_ON_CPU(*f32, 1e-3);
        for (const Both* bf : {&h, &all}) EXPECT_AS_ON_CPU(*bf, test::kBf16);
        if (reads_only) continue;
        for (const Both* f32 : {&post, &comb, &dpost, &dcomb}) EXPECT_AS_ON_CPU(*f32, 1e-4);
        for (const Both* bf : {&out, &dy}) EXPECT_AS_ON_CPU(*bf, test::kBf16);
        EXPECT_AS_ON_CPU(dx, 2 * test::kBf16);  // rounded twice
      }
}

}  // namespace
}  // namespace hyscale
