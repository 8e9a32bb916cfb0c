#include "kernels/lm_head_loss/lm_head_loss.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

double naive(const std::vector<double>& h, const std::vector<double>& w, const HostTensor& labels, int64_t columns) {
  const size_t c = static_cast<size_t>(columns), vocabulary = w.size() / c;
  double loss = 0;
  for (size_t t = 0; t < h.size() / c; ++t) {
    if (labels.i32()[t] < 0) continue;
    std::vector<double> z(vocabulary);
    double sum = 0;
    for (size_t v = 0; v < vocabulary; ++v) {
      for (size_t i = 0; i < c; ++i) z[v] += h[t * c + i] * w[v * c + i];
      sum += std::exp(z[v]);
    }
    loss += std::log(sum) - z[static_cast<size_t>(labels.i32()[t])];
  }
  return loss;
}

struct Result {
  HostTensor loss = test::zeros(DType::f64, {1}), dh, dw;
};
Result run(const HostTensor& h, const HostTensor& w, const HostTensor& labels, float scale) {
  Result r;
  r.dh = HostTensor(h.t().shape());
  r.dw = test::filled(w.t().shape(), 0);
  LmHeadLoss l{h, w, labels, scale, r.loss, r.dh, r.dw, {}, {}};
  const HostTensor space = test::workspace(lm_head_loss_workspace_bytes(l));
  l.workspace = space;
  lm_head_loss(l);
  return r;
}

TEST(LmHeadLoss, LossAndGradientsMatchCentralDifferences) {
  for (int64_t tokens : {0, 1, 7}) {
    const int64_t columns = 6, vocabulary = 11;
    const HostTensor h = test::random({tokens, columns}, 1), w = test::random({vocabulary, columns}, 2);
    HostTensor labels(DType::i32, {tokens});
    for (int64_t t = 0; t < tokens; ++t) labels.i32()[t] = t == 3 ? -1 : static_cast<int32_t>(t * 3 % vocabulary);
    const Result r = run(h, w, labels, 0.25f);
    const std::vector<double> h64 = test::doubles(h), w64 = test::doubles(w);
    EXPECT_NEAR(r.loss.f64()[0], naive(h64, w64, labels, columns), 1e-5);
    EXPECT_CLOSE(r.dh, test::central_differences(h64, [&](const auto& v) { return 0.25 * naive(v, w64, labels, columns); }), 1e-5);
    EXPECT_CLOSE(r.dw, test::central_differences(w64, [&](const auto& v) { return 0.25 * naive(h64, v, labels, columns); }), 1e-5);
  }
}

TEST(LmHeadLoss, ChunksDoNotShow) {
  // More tokens than a chunk holds (8192), against the same tokens in two calls.
  const int64_t tokens = 8200;
  const HostTensor h = test::random({tokens, 4}, 1), w = test::random({9, 4}, 2);
  HostTensor labels(DType::i32, {tokens});
  for (int64_t t = 0; t < tokens; ++t) labels.i32()[t] = static_cast<int32_t>(t % 10) - 1;
  const Result whole = run(h, w, labels, 1);
  double sum = 0;
  HostTensor dh({tokens, 4});
  for (int64_t first : {0, 5000}) {
    const int64_t last = first == 0 ? 5000 : tokens;
    HostTensor part({last - first, 4}), part_labels(DType::i32, {last - first});
    std::copy_n(h.f32() + first * 4, part.size(), part.f32());
    std::copy_n(labels.i32() + first, last - first, part_labels.i32());
    const Result r = run(part, w, part_labels, 1);
    sum += r.loss.f64()[0];
    std::copy_n(r.dh.f32(), part.size(), dh.f32() + first * 4);
  }
  EXPECT_NEAR(whole.loss.f64()[0], sum, 1e-9 * sum);
  EXPECT_CLOSE(whole.dh, test::doubles(dh), 1e-6);
}

TEST(LmHeadLoss, HugeLogitsStayFinite) {
  HostTensor h = test::filled({1, 1}, 1000), w({2, 1}), labels = test::ints({1}, {0});
  w[0] = 1, w[1] = -1;
  const Result r = run(h, w, labels, 1);
  EXPECT_EQ(r.loss.f64()[0], 0);
  EXPECT_TRUE(std::isfinite(r.dh[0]));
}

}  // namespace
}  // namespace hyscale
