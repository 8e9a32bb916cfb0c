#include "kernels/muon/muon.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

TEST(Muon, ThreeStepsOfMomentumMatchTheFormulaInDoublePrecision) {
  const int64_t n = 17;
  HostTensor momentum = test::filled({n}, 0), gate({2});
  gate[0] = 0.5f, gate[1] = 1;
  std::vector<double> m(n), u(n);
  for (uint64_t step = 1; step <= 3; ++step) {
    HostTensor grad = test::random({n}, 10 + step);
    for (size_t i = 0; i < m.size(); ++i) {
      const double g = 0.5 * grad[static_cast<int64_t>(i)];
      m[i] = double{0.95f} * m[i] + g;
      u[i] = g + double{0.95f} * m[i];
    }
    muon_momentum({momentum, grad, gate, 0.95f, {}});
    EXPECT_CLOSE(momentum, m, 1e-6);
    EXPECT_CLOSE(grad, u, 1e-6);
  }
}

TEST(Muon, AppliesADirectionWithDecay) {
  const int64_t n = 19;
  HostTensor master = test::random({n}, 1), gate = test::filled({2}, 1), value(DType::bf16, {n});
  const HostTensor direction = test::random({n}, 2);
  std::vector<double> p = test::doubles(master);
  for (size_t i = 0; i < p.size(); ++i) p[i] -= 0.01f * (0.2f * double{direction[static_cast<int64_t>(i)]} + 0.1f * p[i]);
  muon_apply({master, direction, value, gate, 0.01f, 0.2f, 0.1f, {}});
  EXPECT_CLOSE(master, p, 1e-6);
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(value.t().data<uint16_t>()[i], float_to_bf16(master[i]));
}

TEST(Muon, AClosedGateChangesNothing) {
  HostTensor momentum = test::random({5}, 1), grad = test::filled({5}, NAN), master = test::random({5}, 2), gate = test::filled({2}, 0);
  const HostTensor momentum_before = momentum, master_before = master;
  muon_momentum({momentum, grad, gate, 0.95f, {}});
  muon_apply({master, grad, master, gate, 0.01f, 1, 0.1f, {}});
  EXPECT_TRUE(test::same_bits(momentum, momentum_before));
  EXPECT_TRUE(test::same_bits(master, master_before));
}

}  // namespace
}  // namespace hyscale
