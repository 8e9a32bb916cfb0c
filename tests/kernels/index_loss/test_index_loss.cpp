#include "kernels/index_loss/index_loss.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

struct Problem {
  int64_t queries, heads, dims, rows, k;
  HostTensor q, w, keys, indices, counts, head_sum;
};

Problem make(int64_t queries, int64_t k) {
  Problem p{queries, 3, 4, 9, k, test::random({queries, 3, 4}, 1), test::random({queries, 3}, 2), test::random({9, 4}, 3), HostTensor(DType::i32, {queries, k}),
            HostTensor(DType::i32, {queries}), test::filled({queries, k}, 0)};
  for (int64_t t = 0; t < queries; ++t) {
    const int64_t n = t == 1 ? 0 : std::min<int64_t>(k, t + 1);  // query 1 selects nothing
    p.counts.i32()[t] = static_cast<int32_t>(n);
    for (int64_t j = 0; j < k; ++j) {
      p.indices.i32()[t * k + j] = j < n ? static_cast<int32_t>(j * 9 / n) : -1;
      if (j < n) p.head_sum[t * k + j] = static_cast<float>(0.1 + (t * 7 + j * 3) % 5);
    }
  }
  return p;
}

double naive(const Problem& p, const std::vector<double>& q, const std::vector<double>& w, const std::vector<double>& keys) {
  double loss = 0;
  for (int64_t t = 0; t < p.queries; ++t) {
    const int32_t n = p.counts.i32()[t];
    std::vector<double> scores(static_cast<size_t>(n));
    double student = 0, teacher = 0;
    for (int32_t j = 0; j < n; ++j) {
      for (int64_t h = 0; h < p.heads; ++h) {
        double dot = 0;
        for (int64_t d = 0; d < p.dims; ++d)
          dot += q[static_cast<size_t>((t * p.heads + h) * p.dims + d)] * keys[static_cast<size_t>(p.indices.i32()[t * p.k + j] * p.dims + d)];
        scores[static_cast<size_t>(j)] += w[static_cast<size_t>(t * p.heads + h)] * std::max(dot, 0.0);
      }
      student += std::exp(scores[static_cast<size_t>(j)]);
      teacher += p.head_sum[t * p.k + j];
    }
    for (int32_t j = 0; j < n; ++j) {
      const double share = p.head_sum[t * p.k + j] / teacher;
      if (share > 0) loss += share * (std::log(share) - scores[static_cast<size_t>(j)] + std::log(student));
    }
  }
  return loss;
}

struct Result {
  HostTensor loss = test::zeros(DType::f64, {1}), dq, dw, dkeys;
};
Result run(const Problem& p, float scale) {
  Result r;
  r.dq = HostTensor(p.q.t().shape());
  r.dw = HostTensor(p.w.t().shape());
  r.dkeys = test::filled(p.keys.t().shape(), 0);
  IndexLoss l{p.q, p.w, p.keys, {p.indices, p.counts}, p.head_sum, scale, r.loss, r.dq, r.dw, r.dkeys, false, {}, {}};
  const HostTensor space = test::workspace(index_loss_workspace_bytes(l));
  l.workspace = space;
  index_loss(l);
  return r;
}

TEST(IndexLoss, LossAndGradientsMatchCentralDifferences) {
  for (int64_t queries : {0, 1, 6})
    for (int64_t k : {1, 5}) {
      const Problem p = make(queries, k);
      const Result r = run(p, 0.7f);
      const std::vector<double> q = test::doubles(p.q), w = test::doubles(p.w), keys = test::doubles(p.keys);
      EXPECT_NEAR(r.loss.f64()[0], naive(p, q, w, keys), 1e-5);
      EXPECT_CLOSE(r.dq, test::central_differences(q, [&](const auto& v) { return double{0.7f} * naive(p, v, w, keys); }, 1e-6), 2e-5);
      EXPECT_CLOSE(r.dw, test::central_differences(w, [&](const auto& v) { return double{0.7f} * naive(p, q, v, keys); }, 1e-6), 2e-5);
      EXPECT_CLOSE(r.dkeys, test::central_differences(keys, [&](const auto& v) { return double{0.7f} * naive(p, q, w, v); }, 1e-6), 2e-5);
    }
}

TEST(IndexLoss, ATeacherOfZeroSharesAddsNothing) {
  Problem p = make(3, 4);
  p.head_sum[2 * 4] = 0;
  const Result r = run(p, 1);
  EXPECT_NEAR(r.loss.f64()[0], naive(p, test::doubles(p.q), test::doubles(p.w), test::doubles(p.keys)), 1e-5);
}

TEST(IndexLoss, TwoRunsAreBitEqual) {
  const Problem p = make(100, 7);
  const Result a = run(p, 1), b = run(p, 1);
  EXPECT_TRUE(test::same_bits(a.dkeys, b.dkeys));
  EXPECT_TRUE(test::same_bits(a.dq, b.dq));
  EXPECT_TRUE(test::same_bits(a.loss, b.loss));
}

}  // namespace
}  // namespace hyscale
