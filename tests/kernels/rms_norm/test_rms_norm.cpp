#include "kernels/rms_norm/rms_norm.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

// y of all rows in f64; x is [T, C] inside rows of `stride`.
std::vector<double> naive(const std::vector<double>& x, const std::vector<double>& w, int64_t rows, double eps) {
  const size_t columns = w.size();
  std::vector<double> y(x.size());
  for (size_t t = 0; t < static_cast<size_t>(rows); ++t) {
    double squares = 0;
    for (size_t c = 0; c < columns; ++c) squares += x[t * columns + c] * x[t * columns + c];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(columns) + eps);
    for (size_t c = 0; c < columns; ++c) y[t * columns + c] = w[c] * x[t * columns + c] * rstd;
  }
  return y;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

TEST(RmsNorm, ForwardAndBackwardMatchCentralDifferences) {
  for (int64_t rows : {0, 1, 3, 33})
    for (int64_t columns : {3, 7, 64}) {
      const HostTensor x = test::random({rows, columns}, 1), w = test::random({columns}, 2), dy = test::random({rows, columns}, 3);
      HostTensor y({rows, columns}), rstd({rows}), dx({rows, columns}), dw = test::filled({columns}, 0);
      rms_norm({x, w, 1e-5f, y, rstd, {}});
      const std::vector<double> x64 = test::doubles(x), w64 = test::doubles(w), dy64 = test::doubles(dy);
      EXPECT_CLOSE(y, naive(x64, w64, rows, 1e-5f), 1e-6);
      rms_norm_backward({x, w, rstd, dy, dx, false, dw, {}, {}});
      EXPECT_CLOSE(dx, test::central_differences(x64, [&](const auto& v) { return dot(naive(v, w64, rows, 1e-5f), dy64); }), 2e-5);
      EXPECT_CLOSE(dw, test::central_differences(w64, [&](const auto& v) { return dot(naive(x64, v, rows, 1e-5f), dy64); }), 1e-5);
    }
}

TEST(RmsNorm, WithoutAWeightIsWithOnes) {
  const HostTensor x = test::random({5, 8}, 1), dy = test::random({5, 8}, 2), ones = test::filled({8}, 1);
  HostTensor y({5, 8}), y2({5, 8}), rstd({5}), dx({5, 8}), dx2({5, 8});
  rms_norm({x, {}, 1e-5f, y, rstd, {}});
  rms_norm({x, ones, 1e-5f, y2, {}, {}});
  EXPECT_CLOSE(y, test::doubles(y2), 1e-7);
  rms_norm_backward({x, {}, rstd, dy, dx, false, {}, {}, {}});
  rms_norm_backward({x, ones, rstd, dy, dx2, false, {}, {}, {}});
  EXPECT_CLOSE(dx, test::doubles(dx2), 1e-7);
}

TEST(RmsNorm, StridedRowsAndAccumulation) {
  const HostTensor wide = test::random({5, 20}, 1), w = test::random({8}, 2), dy = test::random({5, 8}, 3);
  const Tensor x = wide.t().slice(1, 4, 12);
  HostTensor narrow({5, 8}), y({5, 8}), y2({5, 8}), rstd({5}), dx = test::filled({5, 8}, 1), dx2({5, 8});
  for (int64_t t = 0; t < 5; ++t) std::copy_n(wide.f32() + t * 20 + 4, 8, narrow.f32() + t * 8);
  rms_norm({x, w, 1e-5f, y, rstd, {}});
  rms_norm({narrow, w, 1e-5f, y2, {}, {}});
  EXPECT_TRUE(test::same_bits(y, y2));
  rms_norm_backward({x, w, rstd, dy, dx, true, {}, {}, {}});
  rms_norm_backward({narrow, w, rstd, dy, dx2, false, {}, {}, {}});
  for (int64_t i = 0; i < 40; ++i) EXPECT_FLOAT_EQ(dx[i], 1 + dx2[i]);
}

TEST(RmsNorm, AZeroCentredWeightIsAWeightLessOne) {
  const HostTensor x = test::random({5, 16}, 1), centred = test::random({16}, 2, 0.25f), dy = test::random({5, 16}, 3);
  HostTensor plain = centred, y({5, 16}), y2({5, 16}), rstd({5}), dx({5, 16}), dx2({5, 16}), dw = test::filled({16}, 0), dw2 = test::filled({16}, 0);
  for (int64_t i = 0; i < 16; ++i) plain[i] += 1;
  rms_norm({x, centred, 1e-5f, y, rstd, {}, 1});
  rms_norm({x, plain, 1e-5f, y2, {}, {}});
  rms_norm_backward({x, centred, rstd, dy, dx, false, dw, {}, {}, 1});
  rms_norm_backward({x, plain, rstd, dy, dx2, false, dw2, {}, {}});
  EXPECT_TRUE(test::same_bits(y, y2));
  EXPECT_TRUE(test::same_bits(dx, dx2));
  EXPECT_TRUE(test::same_bits(dw, dw2));
}

TEST(RmsNorm, GradientInPlaceOfItsInput) {
  const HostTensor x = test::random({4, 16}, 1), w = test::random({16}, 2);
  HostTensor dy = test::random({4, 16}, 3), rstd({4}), y({4, 16}), dx({4, 16}), dw = test::filled({16}, 0), dw2 = test::filled({16}, 0);
  rms_norm({x, w, 1e-5f, y, rstd, {}});
  rms_norm_backward({x, w, rstd, dy, dx, false, dw, {}, {}});
  rms_norm_backward({x, w, rstd, dy, dy, false, dw2, {}, {}});
  EXPECT_TRUE(test::same_bits(dy, dx));
  EXPECT_TRUE(test::same_bits(dw, dw2));
}

}  // namespace
}  // namespace hyscale
