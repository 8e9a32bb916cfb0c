#include "kernels/grad_norm/grad_norm.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

TEST(GradNorm, SumsSquaresAcrossBlocksAndCalls) {
  const HostTensor x = test::random({200001}, 1);
  HostTensor sum = test::zeros(DType::f64, {1});
  sum_of_squares({x, sum, {}, {}});
  sum_of_squares({HostTensor({0}), sum, {}, {}});
  double expected = 0;
  for (int64_t i = 0; i < x.size(); ++i) expected += double{x[i]} * x[i];
  EXPECT_NEAR(sum.f64()[0], expected, 1e-9 * expected);
}

TEST(GradNorm, GateClipsAndCloses) {
  HostTensor sum = test::zeros(DType::f64, {1}), losses = test::zeros(DType::f64, {2}), gate({2});
  sum.f64()[0] = 16;
  clip_gate({sum, {losses, {}}, 1, gate, {}});
  EXPECT_NEAR(gate[0], 0.25, 1e-6);
  EXPECT_EQ(gate[1], 1);
  clip_gate({sum, {losses, {}}, 0, gate, {}});
  EXPECT_EQ(gate[0], 1);
  losses.f64()[1] = INFINITY;
  clip_gate({sum, {Tensor(), losses}, 1, gate, {}});
  EXPECT_EQ(gate[0], 0);
  EXPECT_EQ(gate[1], 0);
}

TEST(GradNorm, GateClosesAboveABound) {
  HostTensor sum = test::zeros(DType::f64, {1}), loss = test::zeros(DType::f64, {1}), gate({2});
  sum.f64()[0] = 16, loss.f64()[0] = 3;
  for (const auto& [most_squares, most_loss, open] : {std::tuple{16.0, 3.0, 1.0f}, {15.9, 3.0, 0.0f}, {16.0, 2.9, 0.0f}, {INFINITY, INFINITY, 1.0f}}) {
    clip_gate({sum, {}, 0, gate, {}, {{{sum, most_squares}, {}, {loss, most_loss}}}});
    EXPECT_EQ(gate[0], open);
    EXPECT_EQ(gate[1], open);
  }
}

}  // namespace
}  // namespace hyscale
