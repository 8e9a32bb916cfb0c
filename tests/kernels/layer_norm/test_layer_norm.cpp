#include "kernels/layer_norm/layer_norm.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

std::vector<double> naive(const std::vector<double>& x, const std::vector<double>& w, const std::vector<double>& b, double eps) {
  const size_t columns = w.size();
  std::vector<double> y(x.size());
  for (size_t t = 0; t < x.size() / columns; ++t) {
    double mean = 0, variance = 0;
    for (size_t c = 0; c < columns; ++c) mean += x[t * columns + c] / static_cast<double>(columns);
    for (size_t c = 0; c < columns; ++c) variance += (x[t * columns + c] - mean) * (x[t * columns + c] - mean) / static_cast<double>(columns);
    for (size_t c = 0; c < columns; ++c) y[t * columns + c] = w[c] * (x[t * columns + c] - mean) / std::sqrt(variance + eps) + b[c];
  }
  return y;
}

TEST(LayerNorm, ForwardAndBackwardMatchCentralDifferences) {
  for (int64_t rows : {0, 1, 5, 33})
    for (int64_t columns : {3, 7, 64}) {
      const HostTensor x = test::random({rows, columns}, 1), w = test::random({columns}, 2), b = test::random({columns}, 3), dy = test::random({rows, columns}, 4);
      HostTensor y({rows, columns}), mean({rows}), rstd({rows}), dx({rows, columns}), dw = test::filled({columns}, 0), db = test::filled({columns}, 0);
      layer_norm({x, w, b, 1e-6f, y, mean, rstd, {}});
      const std::vector<double> x64 = test::doubles(x), w64 = test::doubles(w), b64 = test::doubles(b), dy64 = test::doubles(dy);
      EXPECT_CLOSE(y, naive(x64, w64, b64, 1e-6f), 1e-6);
      layer_norm_backward({x, w, mean, rstd, dy, dx, dw, db, {}, {}});
      const auto loss = [&](const std::vector<double>& x_, const std::vector<double>& w_, const std::vector<double>& b_) {
        const std::vector<double> out = naive(x_, w_, b_, 1e-6f);
        double sum = 0;
        for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dy64[i];
        return sum;
      };
      EXPECT_CLOSE(dx, test::central_differences(x64, [&](const auto& v) { return loss(v, w64, b64); }), 5e-5);
      EXPECT_CLOSE(dw, test::central_differences(w64, [&](const auto& v) { return loss(x64, v, b64); }), 1e-5);
      EXPECT_CLOSE(db, test::central_differences(b64, [&](const auto& v) { return loss(x64, w64, v); }), 1e-5);
    }
}

}  // namespace
}  // namespace hyscale
