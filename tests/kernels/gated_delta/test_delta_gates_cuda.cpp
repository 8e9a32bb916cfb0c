#include "kernels/gated_delta/delta_gates.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

TEST(DeltaGatesCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 9, 2500})
    for (int64_t heads : {1, 48}) {
      SCOPED_TRACE(concat(tokens, " tokens, ", heads, " heads"));
      const Shape shape{tokens, heads};
      const Both a = test::as_is(test::random(shape, 1, 3)), b = test::as_is(test::random(shape, 2, 3)), a_log = test::as_is(test::random({heads}, 3)), bias = test::as_is(test::random({heads}, 4));
      const Both dlog_decay = test::as_is(test::random(shape, 5)), dbeta = test::as_is(test::random(shape, 6)), log_decay = test::f32_out(shape), beta = test::f32_out(shape);
      const Both da = test::f32_out(shape), db = test::f32_out(shape), da_log = test::as_is(test::random({heads}, 7)), dbias = test::as_is(test::random({heads}, 8));
      test::on_both([&](Device d) {
        delta_gates({a[d], b[d], a_log[d], bias[d], log_decay[d], beta[d], {}});
        delta_gates_backward({a[d], a_log[d], bias[d], log_decay[d], beta[d], dlog_decay[d], dbeta[d], da[d], db[d], da_log[d], dbias[d], {}});
      });
      EXPECT_AS_ON_CPU(log_decay, test::kF32);
      EXPECT_AS_ON_CPU(beta, test::kF32);
      EXPECT_AS_ON_CPU(da, test::kF32);
      EXPECT_AS_ON_CPU(db, test::kF32);
      EXPECT_AS_ON_CPU(da_log, test::kF32);
      EXPECT_AS_ON_CPU(dbias, test::kF32);
    }
}

TEST(DeltaGatesCuda, LargeInputsStayFinite) {
  SKIP_WITHOUT_CUDA();
  test::HostTensor large({1, 2});
  large[0] = 300, large[1] = -300;
  const Both a = test::as_is(large), zero = test::as_is(test::filled({2}, 0)), log_decay = test::f32_out({1, 2}), beta = test::f32_out({1, 2});
  test::on_both([&](Device d) { delta_gates({a[d], a[d], zero[d], zero[d], log_decay[d], beta[d], {}}); });
  EXPECT_AS_ON_CPU(log_decay, test::kF32);
  EXPECT_AS_ON_CPU(beta, test::kF32);
}

}  // namespace
}  // namespace hyscale
