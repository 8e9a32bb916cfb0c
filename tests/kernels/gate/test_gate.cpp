#include "kernels/gate/gate.h"

#include <numeric>

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

// y of rows of `dims` numbers; gates has one for each number, or one for each row.
std::vector<double> naive(const std::vector<double>& x, const std::vector<double>& gates, GateActivation a, size_t dims) {
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); ++i) {
    const double g = gates[gates.size() == x.size() ? i : i / dims], s = 1 / (1 + std::exp(-g));
    y.push_back(x[i] * (a == GateActivation::sigmoid ? s : g * s));
  }
  return y;
}

TEST(Gate, ForwardAndBackwardMatchCentralDifferences) {
  for (GateActivation a : {GateActivation::sigmoid, GateActivation::silu})
    for (int64_t tokens : {0, 1, 5})
      for (int64_t width : {1, 6}) {
        const Shape shape{tokens, 2, 6}, of_gates{tokens, 2, width};
        const HostTensor x = test::random(shape, 1), g = test::random(of_gates, 2, 2), dy = test::random(shape, 3);
        HostTensor y(shape), dx(shape), dg(of_gates);
        gate({x, g, a, y, {}});
        gate_backward({x, g, a, dy, dx, dg, {}});
        const std::vector<double> x64 = test::doubles(x), g64 = test::doubles(g), dy64 = test::doubles(dy);
        const auto loss = [&](const std::vector<double>& xs, const std::vector<double>& gs) {
          const std::vector<double> out = naive(xs, gs, a, 6);
          return std::inner_product(out.begin(), out.end(), dy64.begin(), 0.0);
        };
        EXPECT_CLOSE(y, naive(x64, g64, a, 6), 1e-6);
        EXPECT_CLOSE(dx, test::central_differences(x64, [&](const auto& v) { return loss(v, g64); }), 1e-5);
        EXPECT_CLOSE(dg, test::central_differences(g64, [&](const auto& v) { return loss(x64, v); }), 1e-5);
      }
}

TEST(Gate, StridedHalvesOfEveryHeadAndGradientInPlace) {
  const HostTensor both = test::random({3, 2, 10}, 1), x = test::random({3, 2, 5}, 2), dy = test::random({3, 2, 5}, 3);
  const Tensor strided = both.t().slice(2, 5, 10);
  HostTensor dense({3, 2, 5}), y({3, 2, 5}), y2({3, 2, 5}), dx({3, 2, 5}), dg({3, 2, 5}), in_place = dy, dboth = test::filled({3, 2, 10}, 0);
  for (int64_t row = 0; row < 6; ++row) std::copy_n(both.f32() + row * 10 + 5, 5, dense.f32() + row * 5);
  gate({x, strided, GateActivation::sigmoid, y, {}});
  gate({x, dense, GateActivation::sigmoid, y2, {}});
  EXPECT_TRUE(test::same_bits(y, y2));
  gate_backward({x, dense, GateActivation::sigmoid, dy, dx, dg, {}});
  gate_backward({x, strided, GateActivation::sigmoid, in_place, in_place, dboth.t().slice(2, 5, 10), {}});
  EXPECT_TRUE(test::same_bits(in_place, dx));
  for (int64_t row = 0; row < 6; ++row)
    for (int64_t d = 0; d < 5; ++d) EXPECT_EQ(dboth[row * 10 + 5 + d], dg[row * 5 + d]);
}

}  // namespace
}  // namespace hyscale
