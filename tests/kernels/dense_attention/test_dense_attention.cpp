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
  int64_t tokens, heads, groups, dims, dv, index_heads, index_dims;
  HostTensor q, k, v, begin, end, index_q, index_w, index_keys;
  int64_t group_of(int64_t head) const { return head / (heads / groups); }
};

// Documents of `document` tokens; token 4 sees nothing. Two query heads for each of `groups` key heads.
Problem make(int64_t tokens, int64_t groups = 2, int32_t document = 3) {
  const int64_t heads = groups == 2 ? 2 : 2 * groups;
  Problem p{tokens, heads, groups, 4, 3, 3, 5, test::random({tokens, heads, 4}, 1), test::random({tokens, groups, 4}, 2), test::random({tokens, groups, 3}, 3), HostTensor(DType::i32, {tokens}),
            HostTensor(DType::i32, {tokens}), test::random({tokens, 3, 5}, 4), test::random({tokens, 3}, 5), test::random({tokens, 5}, 6)};
  for (int32_t t = 0; t < tokens; ++t) {
    p.begin.i32()[t] = tokens > 100 ? 0 : t / document * document;
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
      for (int64_t d = 0; d < p.dims; ++d) dot += double{p.q[(t * p.heads + h) * p.dims + d]} * p.k[(s * p.groups + p.group_of(h)) * p.dims + d];
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
  for (const auto& [tokens, groups] : std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {1, 2}, {7, 2}, {600, 2}, {7, 1}, {300, 3}}) {
    const Problem p = make(tokens, groups);
    const Attention r = attend(p);
    std::vector<double> out(static_cast<size_t>(r.out.size())), lse;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto probability = probabilities(p, t);
      for (int64_t h = 0; h < p.heads; ++h) {
        const auto& row = probability[static_cast<size_t>(h)];
        lse.push_back(row.back());
        for (int64_t s = p.begin.i32()[t]; s < p.end.i32()[t]; ++s)
          for (int64_t d = 0; d < p.dv; ++d)
            out[static_cast<size_t>((t * p.heads + h) * p.dv + d)] += row[static_cast<size_t>(s - p.begin.i32()[t])] * p.v[(s * p.groups + p.group_of(h)) * p.dv + d];
      }
    }
    EXPECT_CLOSE(r.out, out, 1e-6);
    EXPECT_CLOSE(r.lse, lse, 1e-6);
  }
}

// Blocks of `ratio` tokens from a document's start on; a query sees those that are complete.
struct Blocks {
  int64_t ratio;
  HostTensor first_token, begin, end;
};
Blocks blocks_of(const Problem& p, int64_t ratio, int64_t document) {
  Blocks b{ratio, {}, HostTensor(DType::i32, {p.tokens}), HostTensor(DType::i32, {p.tokens})};
  std::vector<int32_t> firsts;
  for (int64_t start = 0; start < p.tokens; start += document) {
    const auto before = static_cast<int32_t>(firsts.size());
    for (int64_t t = start; t < std::min(start + document, p.tokens); ++t) {
      b.begin.i32()[t] = before;
      b.end.i32()[t] = before + static_cast<int32_t>(std::max<int64_t>(0, p.end.i32()[t] - start) / ratio);
    }
    for (int64_t t = start; t + ratio <= std::min(start + document, p.tokens); t += ratio) firsts.push_back(static_cast<int32_t>(t));
  }
  b.first_token = HostTensor(DType::i32, {static_cast<int64_t>(firsts.size())});
  std::copy(firsts.begin(), firsts.end(), b.first_token.i32());
  return b;
}

// The loss by its definition, the weights all ones.
double naive_block_loss(const Problem& p, const Blocks& b, const std::vector<double>& q, const std::vector<double>& keys) {
  double loss = 0;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const auto teacher = probabilities(p, t);
    std::vector<double> mass, scores;
    for (int64_t e = b.begin.i32()[t]; e < b.end.i32()[t]; ++e) {
      double most = 0, score = 0;
      for (int64_t s = b.first_token.i32()[e]; s < b.first_token.i32()[e] + b.ratio; ++s) {
        double sum = 0;
        for (const auto& head : teacher) sum += head[static_cast<size_t>(s - p.begin.i32()[t])];
        most = std::max(most, sum);
      }
      for (int64_t h = 0; h < p.index_heads; ++h) {
        double dot = 0;
        for (int64_t d = 0; d < p.index_dims; ++d) dot += q[static_cast<size_t>((t * p.index_heads + h) * p.index_dims + d)] * keys[static_cast<size_t>(e * p.index_dims + d)];
        score += std::max(dot, 0.0);
      }
      mass.push_back(most), scores.push_back(score);
    }
    double total = 0, sum = 0;
    for (size_t e = 0; e < mass.size(); ++e) total += mass[e], sum += std::exp(scores[e]);
    for (size_t e = 0; e < mass.size(); ++e) loss += mass[e] / total * (std::log(mass[e] / total) - scores[e] + std::log(sum));
  }
  return loss;
}

TEST(DenseIndexLoss, OfBlocksMatchesCentralDifferences) {
  for (int64_t tokens : {0, 2, 23}) {
    const Problem p = make(tokens, 1, 11);
    const Blocks b = blocks_of(p, 4, 11);
    const Attention main = attend(p);
    const int64_t blocks = b.first_token.size();
    const HostTensor index_keys = test::random({blocks, p.index_dims}, 6);
    HostTensor loss = test::zeros(DType::f64, {1}), dq(p.index_q.t().shape()), dkeys = test::filled({blocks, p.index_dims}, 0);
    DenseIndexLoss l{p.q, p.k, main.lse, kScale, p.index_q, {}, index_keys, p.begin, p.end, {b.ratio, b.first_token, b.begin, b.end}, 0.7f, loss, dq, {}, dkeys, {}, {}};
    const HostTensor space = test::workspace(dense_index_loss_workspace_bytes(l));
    l.workspace = space;
    dense_index_loss(l);
    const std::vector<double> q = test::doubles(p.index_q), keys = test::doubles(index_keys);
    EXPECT_NEAR(loss.f64()[0], naive_block_loss(p, b, q, keys), 1e-5);
    EXPECT_GE(loss.f64()[0], tokens > 4 ? 0.1 : 0);
    EXPECT_CLOSE(dq, test::central_differences(q, [&](const auto& v) { return double{0.7f} * naive_block_loss(p, b, v, keys); }, 1e-6), 2e-5);
    EXPECT_CLOSE(dkeys, test::central_differences(keys, [&](const auto& v) { return double{0.7f} * naive_block_loss(p, b, q, v); }, 1e-6), 2e-5);
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
    DenseIndexLoss l{p.q, p.k, main.lse, kScale, p.index_q, p.index_w, p.index_keys, p.begin, p.end, {}, 0.7f, loss, dq, dw, dkeys, {}, {}};
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
