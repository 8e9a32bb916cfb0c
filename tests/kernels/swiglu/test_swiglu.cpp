#include "kernels/swiglu/swiglu.h"

#include <algorithm>

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

std::vector<double> naive(const std::vector<double>& x, int64_t width, double limit = INFINITY) {
  std::vector<double> y;
  for (size_t r = 0; r < x.size() / static_cast<size_t>(2 * width); ++r)
    for (int64_t i = 0; i < width; ++i) {
      const double g = std::min(x[r * static_cast<size_t>(2 * width) + static_cast<size_t>(i)], limit);
      const double u = std::clamp(x[r * static_cast<size_t>(2 * width) + static_cast<size_t>(width + i)], -limit, limit);
      y.push_back(g / (1 + std::exp(-g)) * u);
    }
  return y;
}

TEST(Swiglu, ForwardAndBackwardMatchCentralDifferences) {
  for (float limit : {kNoLimit, 1.5f})
    for (int64_t rows : {0, 1, 5})
      for (int64_t width : {1, 7, 32}) {
        const HostTensor x = test::random({rows, 2 * width}, 1, 3), dy = test::random({rows, width}, 2);
        HostTensor y({rows, width}), dx({rows, 2 * width});
        swiglu({x, y, {}, limit});
        const std::vector<double> x64 = test::doubles(x), dy64 = test::doubles(dy);
        EXPECT_CLOSE(y, naive(x64, width, limit), 1e-6);
        swiglu_backward({x, dy, dx, {}, limit});
        EXPECT_CLOSE(dx, test::central_differences(x64, [&](const auto& v) {
                       const std::vector<double> out = naive(v, width, limit);
                       double sum = 0;
                       for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dy64[i];
                       return sum;
                     }), 1e-5);
      }
}

TEST(Swiglu, LargeGatesStayFinite) {
  HostTensor x = test::filled({1, 4}, 1), y({1, 2});
  x[0] = 200, x[1] = -200;
  swiglu({x, y, {}});
  EXPECT_EQ(y[0], 200);
  EXPECT_EQ(y[1], 0);
}

}  // namespace
}  // namespace hyscale
