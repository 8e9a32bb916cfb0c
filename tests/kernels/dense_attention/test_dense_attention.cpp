// Dense attention and the warm-up index loss, each against its definition; and the two index losses against each other
// where the selection is everything that is visible.
#include "kernels/dense_attention/dense_attention.h"

#include "kernels/dense_index_loss/dense_index_loss.h"
#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;
constexpr float kScale = 0.4f;

struct Problem {
  int64_t tokens, heads, dims, dv, index_heads, index_dims;
  HostTensor q, k, v, begin, end, index_q, index_w, index_keys;
};

// Documents of 3 tokens; token 4 sees nothing.
Problem make(int64_t tokens) {
  Problem p{tokens, 2, 4, 3, 3, 5, test::random({tokens, 2, 4}, 1), test::random({tokens, 2, 4}, 2), test::random({tokens, 2, 3}, 3), HostTensor(DType::i32, {tokens}),
            HostTensor(DType::i32, {tokens}), test::random({tokens, 3, 5}, 4), test::random({tokens, 3}, 5), test::random({tokens, 5}, 6)};
  for (int32_t t = 0; t < tokens; ++t) {
    p.begin.i32()[t] = tokens > 100 ? 0 : t / 3 * 3;
    p.end.i32()[t] = t == 4 ? p.begin.i32()[t] : t + 1;
  }
  return p;
}

// Softmax of each head over the visible keys, [H][visible].
std::vector<std::vector<double>> probabilities(const Problem& p, int64_t t) {
  std::vector<std::vector<double>> all;
  for (int64_t h = 0; h < p.heads; ++h) {
    std::vector<double> row;
    double sum = 0;
    for (int64_t s = p.begin.i32()[t]; s < p.end.i32()[t]; ++s) {
      double dot = 0;
      for (int64_t d = 0; d < p.dims; ++d) dot += double{p.q[(t * p.heads + h) * p.dims + d]} * p.k[(s * p.heads + h) * p.dims + d];
      row.push_back(std::exp(kScale * dot));
      sum += row.back();
    }
    for (double& x : row) x /= sum;
    row.push_back(std::log(sum));
    all.push_back(row);
  }
  return all;
}

struct Attention {
  HostTensor out, lse;
};
Attention attend(const Problem& p) {
  Attention r{HostTensor({p.tokens, p.heads, p.dv}), HostTensor({p.tokens, p.heads})};
  DenseAttention a{p.q, p.k, p.v, p.begin, p.end, kScale, r.out, r.lse, {}, {}};
  const HostTensor space = test::workspace(dense_attention_workspace_bytes(a));
  a.workspace = space;
  dense_attention(a);
  return r;
}

TEST(DenseAttention, MatchesTheDefinition) {
  for (int64_t tokens : {0, 1, 7, 600}) {
    const Problem p = make(tokens);
    const Attention r = attend(p);
    std::vector<double> out(static_cast<size_t>(r.out.size())), lse;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto probability = probabilities(p, t);
      for (int64_t h = 0; h < p.heads; ++h) {
        const auto& row = probability[static_cast<size_t>(h)];
        lse.push_back(row.back());
        for (int64_t s = p.begin.i32()[t]; s < p.end.i32()[t]; ++s)
          for (int64_t d = 0; d < p.dv; ++d)
            out[static_cast<size_t>((t * p.heads + h) * p.dv + d)] += row[static_cast<size_t>(s - p.begin.i32()[t])] * p.v[(s * p.heads + h) * p.dv + d];
      }
    }
    EXPECT_CLOSE(r.out, out, 1e-6);
    EXPECT_CLOSE(r.lse, lse, 1e-6);
  }
}

double naive_loss(const Problem& p, const std::vector<double>& q, const std::vector<double>& w, const std::vector<double>& keys) {
  double loss = 0;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const auto teacher = probabilities(p, t);
    const int64_t n = p.end.i32()[t] - p.begin.i32()[t];
    std::vector<double> scores(static_cast<size_t>(n));
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t h = 0; h < p.index_heads; ++h) {
        double dot = 0;
        for (int64_t d = 0; d < p.index_dims; ++d)
          dot += q[static_cast<size_t>((t * p.index_heads + h) * p.index_dims + d)] * keys[static_cast<size_t>((p.begin.i32()[t] + i) * p.index_dims + d)];
        scores[static_cast<size_t>(i)] += w[static_cast<size_t>(t * p.index_heads + h)] * std::max(dot, 0.0);
      }
      sum += std::exp(scores[static_cast<size_t>(i)]);
    }
    for (int64_t i = 0; i < n; ++i) {
      const double share = (teacher[0][static_cast<size_t>(i)] + teacher[1][static_cast<size_t>(i)]) / 2;
      loss += share * (std::log(share) - scores[static_cast<size_t>(i)] + std::log(sum));
    }
  }
  return loss;
}

TEST(DenseIndexLoss, LossAndGradientsMatchCentralDifferences) {
  for (int64_t tokens : {0, 1, 20}) {
    const Problem p = make(tokens);
    const Attention main = attend(p);
    HostTensor loss = test::zeros(DType::f64, {1}), dq(p.index_q.t().shape()), dw(p.index_w.t().shape()), dkeys = test::filled(p.index_keys.t().shape(), 0);
    DenseIndexLoss l{p.q, p.k, main.lse, kScale, p.index_q, p.index_w, p.index_keys, p.begin, p.end, 0.7f, loss, dq, dw, dkeys, {}, {}};
    const HostTensor space = test::workspace(dense_index_loss_workspace_bytes(l));
    l.workspace = space;
    dense_index_loss(l);
    const std::vector<double> q = test::doubles(p.index_q), w = test::doubles(p.index_w), keys = test::doubles(p.index_keys);
    EXPECT_NEAR(loss.f64()[0], naive_loss(p, q, w, keys), 1e-5);
    EXPECT_CLOSE(dq, test::central_differences(q, [&](const auto& v) { return double{0.7f} * naive_loss(p, v, w, keys); }, 1e-6), 2e-5);
    EXPECT_CLOSE(dw, test::central_differences(w, [&](const auto& v) { return double{0.7f} * naive_loss(p, q, v, keys); }, 1e-6), 2e-5);
    EXPECT_CLOSE(dkeys, test::central_differences(keys, [&](const auto& v) { return double{0.7f} * naive_loss(p, q, w, v); }, 1e-6), 2e-5);
  }
}

}  // namespace
}  // namespace hyscale
