#include "kernels/short_conv/short_conv.h"

#include <numeric>

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

// Positions of documents of these lengths.
HostTensor positions(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> p;
  for (int32_t n : lengths)
    for (int32_t i = 0; i < n; ++i) p.push_back(i);
  return test::ints({static_cast<int64_t>(p.size())}, p);
}

std::vector<double> naive(const std::vector<double>& x, const std::vector<double>& w, const HostTensor& position, size_t channels, int64_t dilation) {
  const int64_t tokens = position.size(), taps = static_cast<int64_t>(w.size() / channels);
  std::vector<double> y;
  for (int64_t t = 0; t < tokens; ++t)
    for (size_t c = 0; c < channels; ++c) {
      double u = 0;
      for (int64_t back = 0; back < taps; ++back)
        if (back * dilation <= position.i32()[t])
          u += w[c * static_cast<size_t>(taps) + static_cast<size_t>(taps - 1 - back)] * x[static_cast<size_t>(t - back * dilation) * channels + c];
      y.push_back(u / (1 + std::exp(-u)));
    }
  return y;
}

TEST(ShortConv, ForwardAndBackwardMatchCentralDifferences) {
  for (int64_t dilation : {1, 3})
    for (int64_t taps : {1, 4})
      for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{}, {1}, {5, 1, 17}}) {
        const HostTensor p = positions(lengths);
        const int64_t tokens = p.size(), channels = 3;
        const HostTensor x = test::random({tokens, channels}, 1), w = test::random({channels, taps}, 2), dy = test::random({tokens, channels}, 3);
        HostTensor y({tokens, channels}), dx({tokens, channels}), dw = test::filled({channels, taps}, 0);
        short_conv({x, w, p, dilation, y, {}});
        ShortConvBackward b{x, w, p, dilation, dy, dx, dw, {}, {}};
        const HostTensor space = test::workspace(short_conv_backward_workspace_bytes(b));
        b.workspace = space;
        short_conv_backward(b);
        const std::vector<double> x64 = test::doubles(x), w64 = test::doubles(w), dy64 = test::doubles(dy);
        const auto loss = [&](const std::vector<double>& xs, const std::vector<double>& ws) {
          const std::vector<double> out = naive(xs, ws, p, 3, dilation);
          return std::inner_product(out.begin(), out.end(), dy64.begin(), 0.0);
        };
        EXPECT_CLOSE(y, naive(x64, w64, p, 3, dilation), 1e-6);
        EXPECT_CLOSE(dx, test::central_differences(x64, [&](const auto& v) { return loss(v, w64); }), 1e-5);
        EXPECT_CLOSE(dw, test::central_differences(w64, [&](const auto& v) { return loss(x64, v); }), 1e-5);
      }
}

}  // namespace
}  // namespace hyscale
