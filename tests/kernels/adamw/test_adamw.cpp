#include "kernels/adamw/adamw.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

TEST(AdamW, ThreeStepsMatchTheFormulaInDoublePrecision) {
  const int64_t n = 17;
  HostTensor master = test::random({n}, 1), m = test::filled({n}, 0), v = test::filled({n}, 0), gate({2}), value(DType::bf16, {n});
  std::vector<double> p = test::doubles(master), em(n), ev(n);
  for (int64_t step = 1; step <= 3; ++step) {
    const HostTensor grad = test::random({n}, static_cast<uint64_t>(10 + step));
    gate[0] = 0.5f, gate[1] = 1;
    adamw({master, m, v, grad, value, gate, 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, step, {}});
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = 0.5 * grad[static_cast<int64_t>(i)];
      em[i] = 0.9f * em[i] + (1 - 0.9f) * g;
      ev[i] = 0.95f * ev[i] + (1 - 0.95f) * g * g;
      p[i] -= 0.01f * (em[i] / (1 - std::pow(double{0.9f}, step)) / (std::sqrt(ev[i] / (1 - std::pow(double{0.95f}, step))) + 1e-8) + 0.1f * p[i]);
    }
  }
  EXPECT_CLOSE(master, p, 1e-6);
  EXPECT_CLOSE(m, em, 1e-6);
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(value.t().data<uint16_t>()[i], float_to_bf16(master[i]));
}

TEST(AdamW, AClosedGateChangesNothing) {
  HostTensor master = test::random({5}, 1), m = test::random({5}, 2), v = test::filled({5}, 1), grad = test::filled({5}, NAN), gate = test::filled({2}, 0);
  const HostTensor before = master, m_before = m;
  adamw({master, m, v, grad, master, gate, 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, {}});
  EXPECT_TRUE(test::same_bits(master, before));
  EXPECT_TRUE(test::same_bits(m, m_before));
}

}  // namespace
}  // namespace hyscale
