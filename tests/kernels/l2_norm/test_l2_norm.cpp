#include "kernels/l2_norm/l2_norm.h"

#include <numeric>

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

std::vector<double> naive(const std::vector<double>& x, size_t dims) {
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size(); row += dims) {
    double squares = 1e-6f;
    for (size_t d = 0; d < dims; ++d) squares += x[row + d] * x[row + d];
    for (size_t d = 0; d < dims; ++d) y[row + d] = x[row + d] / std::sqrt(squares);
  }
  return y;
}

TEST(L2Norm, ForwardAndBackwardMatchCentralDifferences) {
  for (int64_t tokens : {0, 1, 5})
    for (int64_t dims : {2, 7, 32}) {
      // Rows inside wider ones, as columns of a projection are.
      const HostTensor wide = test::random({tokens, 2, dims + 3}, 1), dy = test::random({tokens, 2, dims}, 2);
      const Tensor x = wide.t().slice(2, 1, dims + 1);
      HostTensor y({tokens, 2, dims}), r({tokens, 2}), dx({tokens, 2, dims});
      l2_norm({x, 1e-6f, y, r, {}});
      l2_norm_backward({y, r, dy, dx, {}});
      std::vector<double> x64;
      for (int64_t row = 0; row < tokens * 2; ++row)
        for (int64_t d = 0; d < dims; ++d) x64.push_back(wide[row * (dims + 3) + 1 + d]);
      const std::vector<double> dy64 = test::doubles(dy);
      EXPECT_CLOSE(y, naive(x64, static_cast<size_t>(dims)), 1e-6);
      EXPECT_CLOSE(dx, test::central_differences(x64, [&](const auto& v) {
                     const std::vector<double> out = naive(v, static_cast<size_t>(dims));
                     return std::inner_product(out.begin(), out.end(), dy64.begin(), 0.0);
                   }), 2e-5);
    }
}

TEST(L2Norm, ZeroRowsStayZero) {
  const HostTensor x = test::filled({1, 1, 4}, 0);
  HostTensor y({1, 1, 4}), r({1, 1}), dx({1, 1, 4});
  l2_norm({x, 1e-6f, y, r, {}});
  l2_norm_backward({y, r, test::filled({1, 1, 4}, 1), dx, {}});
  EXPECT_EQ(y[0], 0);
  EXPECT_FLOAT_EQ(dx[0], 1e3f);
}

}  // namespace
}  // namespace hyscale
