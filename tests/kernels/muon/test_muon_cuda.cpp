#include "kernels/muon/muon.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;
using test::HostTensor;

TEST(MuonCuda, MomentumAndUpdateAreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t n : {0, 1, 17, 70001}) {
    HostTensor open({2});
    open[0] = 0.5f, open[1] = 1;
    const Both gate = test::as_is(open), momentum = test::as_is(test::random({n}, 1)), grad = test::as_is(test::random({n}, 2)), master = test::as_is(test::random({n}, 3));
    const Both direction = test::in_bf16(test::random({n}, 4)), value = test::as_is(HostTensor(DType::bf16, {n}));
    test::on_both([&](Device d) {
      muon_momentum({momentum[d], grad[d], gate[d], 0.95f, {}});
      muon_apply({master[d], direction[d], value[d], gate[d], 0.01f, 0.2f, 0.1f, {}});
    });
    EXPECT_AS_ON_CPU(momentum, 1e-6);
    EXPECT_AS_ON_CPU(grad, 1e-6);
    EXPECT_AS_ON_CPU(master, 1e-6);
    const HostTensor weights = master.download(), rounded = value.download();
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(rounded[i], bf16_to_float(float_to_bf16(weights[i]))) << i;
  }
}

TEST(MuonCuda, AClosedGateChangesNothing) {
  SKIP_WITHOUT_CUDA();
  const Both momentum = test::as_is(test::random({5}, 1)), grad = test::as_is(test::filled({5}, NAN)), master = test::as_is(test::random({5}, 2)), gate = test::as_is(test::filled({2}, 0));
  const HostTensor momentum_before = momentum.host(), master_before = master.host();
  test::on_both([&](Device d) {
    muon_momentum({momentum[d], grad[d], gate[d], 0.95f, {}});
    muon_apply({master[d], grad[d], master[d], gate[d], 0.01f, 1, 0.1f, {}});
  });
  EXPECT_TRUE(test::same_bits(momentum.download(), momentum_before) && test::same_bits(master.download(), master_before));
}

}  // namespace
}  // namespace hyscale
