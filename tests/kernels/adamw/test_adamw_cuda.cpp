#include "kernels/adamw/adamw.h"
#include "kernels/grad_norm/grad_norm.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;
using test::HostTensor;

TEST(AdamWCuda, ThreeStepsAreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t n : {0, 1, 17, 70001}) {
    HostTensor open({2});
    open[0] = 0.5f, open[1] = 1;
    const Both master = test::as_is(test::random({n}, 1)), m = test::as_is(test::filled({n}, 0)), v = test::as_is(test::filled({n}, 0)), gate = test::as_is(open);
    const Both value = test::as_is(HostTensor(DType::bf16, {n})), wide = test::f32_out({n});
    for (int64_t step = 1; step <= 3; ++step) {
      const Both grad = test::as_is(test::random({n}, static_cast<uint64_t>(10 + step)));
      test::on_both([&](Device d) { adamw({master[d], m[d], v[d], grad[d], value[d], gate[d], 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, step, {}}); });
    }
    EXPECT_AS_ON_CPU(master, 1e-6);
    EXPECT_AS_ON_CPU(m, 1e-6);
    EXPECT_AS_ON_CPU(v, 1e-6);
    const HostTensor weights = master.download(), rounded = value.download();
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(rounded[i], bf16_to_float(float_to_bf16(weights[i]))) << i;
  }
}

TEST(AdamWCuda, AClosedGateChangesNothing) {
  SKIP_WITHOUT_CUDA();
  const Both master = test::as_is(test::random({5}, 1)), m = test::as_is(test::random({5}, 2)), v = test::as_is(test::filled({5}, 1)), grad = test::as_is(test::filled({5}, NAN));
  const Both gate = test::as_is(test::filled({2}, 0));
  const HostTensor before = master.host(), m_before = m.host(), v_before = v.host();
  test::on_both([&](Device d) { adamw({master[d], m[d], v[d], grad[d], master[d], gate[d], 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, {}}); });
  EXPECT_TRUE(test::same_bits(master.download(), before) && test::same_bits(m.download(), m_before) && test::same_bits(v.download(), v_before));
}

TEST(GradNormCuda, SumsSquaresAndGates) {
  SKIP_WITHOUT_CUDA();
  for (int64_t n : {0, 1, 255, 1000001}) {
    const Both x = test::as_is(test::random({n}, 1)), sum = test::as_is(test::zeros(DType::f64, {1}));
    const auto op = [&](Device d) { return SumOfSquares{x[d], sum[d], {}, {}}; };
    test::on_both([&](Device d) { return sum_of_squares_workspace_bytes(op(d)); },
                  [&](Device d, const Tensor& space) {
                    SumOfSquares s = op(d);
                    s.workspace = space;
                    sum_of_squares(s);
                    sum_of_squares(s);  // accumulates
                  });
    const HostTensor total = sum.download();
    EXPECT_NEAR(total.f64()[0], sum.host().f64()[0], 1e-12 * (1 + sum.host().f64()[0]));
    for (double bad : {0.0, double{INFINITY}, double{NAN}}) {
      HostTensor losses = test::zeros(DType::f64, {3});
      losses.f64()[2] = bad;
      const Both other = test::as_is(losses), gate = test::f32_out({2}), never = test::f32_out({2}), below = test::f32_out({2}), above = test::f32_out({2});
      test::on_both([&](Device d) {
        clip_gate({sum[d], {Tensor(), other[d]}, 1, gate[d], {}});
        clip_gate({sum[d], {other[d], Tensor()}, 0, never[d], {}});
        clip_gate({sum[d], {}, 0, below[d], {}, {{{}, {sum[d], 1e9}, {}}}});
        clip_gate({sum[d], {}, 0, above[d], {}, {{{}, {sum[d], -1}, {}}}});
      });
      EXPECT_AS_ON_CPU(gate, 1e-6);
      EXPECT_SAME_AS_ON_CPU(never);
      EXPECT_SAME_AS_ON_CPU(below);
      EXPECT_SAME_AS_ON_CPU(above);
    }
  }
}

}  // namespace
}  // namespace hyscale
