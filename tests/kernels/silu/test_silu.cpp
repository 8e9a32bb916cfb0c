#include "kernels/silu/silu.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

std::vector<double> naive(const std::vector<double>& x) {
  std::vector<double> y;
  for (double v : x) y.push_back(v / (1 + std::exp(-v)));
  return y;
}

TEST(Silu, ForwardAndBackwardMatchCentralDifferences) {
  for (int64_t n : {0, 1, 7, 64}) {
    const HostTensor x = test::random({n}, 1, 3), dy = test::random({n}, 2);
    HostTensor y({n}), dx({n});
    silu({x, y, {}});
    silu_backward({x, dy, dx, {}});
    const std::vector<double> x64 = test::doubles(x), dy64 = test::doubles(dy);
    EXPECT_CLOSE(y, naive(x64), 1e-6);
    EXPECT_CLOSE(dx, test::central_differences(x64, [&](const auto& v) {
                   const std::vector<double> out = naive(v);
                   double sum = 0;
                   for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dy64[i];
                   return sum;
                 }), 1e-5);
  }
}

}  // namespace
}  // namespace hyscale
