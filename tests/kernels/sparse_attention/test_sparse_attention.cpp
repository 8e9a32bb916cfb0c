#include "kernels/sparse_attention/sparse_attention.h"

#include <algorithm>

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;
constexpr float kScale = 0.3f;

struct Problem {
  int64_t queries, heads, dk, dv, rows, k;
  HostTensor q, kv, indices, counts;
  Selection selection() const { return {indices, counts}; }
};

// Query t reads `count(t)` random rows; rows are read by many queries or by none.
template <typename Count>
Problem make(int64_t queries, int64_t heads, int64_t dk, int64_t dv, int64_t rows, int64_t k, Count count) {
  Problem p{queries, heads, dk, dv, rows, k, test::random({queries, heads, dk}, 1), test::random({rows, dk}, 2), HostTensor(DType::i32, {queries, k}),
            HostTensor(DType::i32, {queries})};
  const Rng rng(9);
  for (int64_t t = 0; t < queries; ++t) {
    std::vector<int32_t> all(static_cast<size_t>(rows));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[rng.below(static_cast<uint64_t>(t) * 1000 + i, i)]);
    const int64_t n = std::min<int64_t>({count(t), k, rows});
    std::sort(all.begin(), all.begin() + n);
    for (int64_t j = 0; j < k; ++j) p.indices.i32()[t * k + j] = j < n ? all[static_cast<size_t>(j)] : -1;
    p.counts.i32()[t] = static_cast<int32_t>(n);
  }
  return p;
}

struct Naive {
  std::vector<double> out, lse, head_sum;
};
Naive naive(const Problem& p, const std::vector<double>& q, const std::vector<double>& kv, const std::vector<double>& sink = {}) {
  Naive r{std::vector<double>(static_cast<size_t>(p.queries * p.heads * p.dv)), {}, std::vector<double>(static_cast<size_t>(p.queries * p.k))};
  for (int64_t t = 0; t < p.queries; ++t)
    for (int64_t h = 0; h < p.heads; ++h) {
      const int32_t n = p.counts.i32()[t];
      std::vector<double> weights(static_cast<size_t>(n));
      double sum = sink.empty() ? 0 : std::exp(sink[static_cast<size_t>(h)]);
      for (int32_t j = 0; j < n; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < p.dk; ++d)
          dot += q[static_cast<size_t>((t * p.heads + h) * p.dk + d)] * kv[static_cast<size_t>(p.indices.i32()[t * p.k + j] * p.dk + d)];
        sum += weights[static_cast<size_t>(j)] = std::exp(kScale * dot);
      }
      r.lse.push_back(n || !sink.empty() ? std::log(sum) : -INFINITY);
      for (int32_t j = 0; j < n; ++j) {
        r.head_sum[static_cast<size_t>(t * p.k + j)] += weights[static_cast<size_t>(j)] / sum;
        for (int64_t d = 0; d < p.dv; ++d)
          r.out[static_cast<size_t>((t * p.heads + h) * p.dv + d)] += weights[static_cast<size_t>(j)] / sum * kv[static_cast<size_t>(p.indices.i32()[t * p.k + j] * p.dk + d)];
      }
    }
  return r;
}

struct Result {
  HostTensor out, lse, dq, dkv, head_sum, dsink;
};
Result run(const Problem& p, const HostTensor& dout, const Tensor& sink = {}) {
  Result r{HostTensor({p.queries, p.heads, p.dv}), HostTensor({p.queries, p.heads}), HostTensor(p.q.t().shape()), test::filled(p.kv.t().shape(), 0), HostTensor({p.queries, p.k}), test::filled({p.heads}, 0)};
  SparseAttentionForward f{p.q, p.kv, p.selection(), kScale, r.out, r.lse, {}, {}, sink};
  const HostTensor forward_space = test::workspace(sparse_attention_forward_workspace_bytes(f));
  f.workspace = forward_space;
  sparse_attention_forward(f);
  SparseAttentionBackward b{p.q, p.kv, p.selection(), kScale, r.out, r.lse, dout, r.dq, r.dkv, r.head_sum, false, {}, {}, sink, sink.defined() ? r.dsink.t() : Tensor()};
  const HostTensor backward_space = test::workspace(sparse_attention_backward_workspace_bytes(b));
  b.workspace = backward_space;
  sparse_attention_backward(b);
  return r;
}

TEST(SparseAttention, ForwardBackwardAndHeadSumMatchTheDefinition) {
  for (int64_t heads : {1, 3})
    for (int64_t k : {1, 4, 11})
      for (int64_t queries : {0, 1, 6}) {
        const Problem p = make(queries, heads, 5, 3, 9, k, [](int64_t t) { return t == 2 ? 0 : t + 2; });  // query 2 reads nothing
        const HostTensor dout = test::random({queries, heads, 3}, 3);
        const Result r = run(p, dout);
        const std::vector<double> q = test::doubles(p.q), kv = test::doubles(p.kv), d = test::doubles(dout);
        const Naive n = naive(p, q, kv);
        EXPECT_CLOSE(r.out, n.out, 1e-6);
        EXPECT_CLOSE(r.lse, n.lse, 1e-6);
        EXPECT_CLOSE(r.head_sum, n.head_sum, 1e-6);
        const auto loss = [&](const std::vector<double>& q_, const std::vector<double>& kv_) {
          const Naive m = naive(p, q_, kv_);
          double sum = 0;
          for (size_t i = 0; i < d.size(); ++i) sum += m.out[i] * d[i];
          return sum;
        };
        EXPECT_CLOSE(r.dq, test::central_differences(q, [&](const auto& v) { return loss(v, kv); }), 1e-5);
        EXPECT_CLOSE(r.dkv, test::central_differences(kv, [&](const auto& v) { return loss(q, v); }), 1e-5);
      }
}

TEST(SparseAttention, ASinkTakesPartInTheSoftmax) {
  const Problem p = make(6, 3, 5, 5, 9, 4, [](int64_t t) { return t == 2 ? 0 : t + 1; });
  const HostTensor dout = test::random({6, 3, 5}, 3), sink = test::random({3}, 4);
  const Result r = run(p, dout, sink);
  const std::vector<double> q = test::doubles(p.q), kv = test::doubles(p.kv), s = test::doubles(sink), d = test::doubles(dout);
  const Naive n = naive(p, q, kv, s);
  EXPECT_CLOSE(r.out, n.out, 1e-6);
  EXPECT_CLOSE(r.lse, n.lse, 1e-6);
  EXPECT_CLOSE(r.head_sum, n.head_sum, 1e-6);
  const auto loss = [&](const std::vector<double>& q_, const std::vector<double>& kv_, const std::vector<double>& s_) {
    const Naive m = naive(p, q_, kv_, s_);
    double sum = 0;
    for (size_t i = 0; i < d.size(); ++i) sum += m.out[i] * d[i];
    return sum;
  };
  EXPECT_CLOSE(r.dq, test::central_differences(q, [&](const auto& v) { return loss(v, kv, s); }), 1e-5);
  EXPECT_CLOSE(r.dkv, test::central_differences(kv, [&](const auto& v) { return loss(q, v, s); }), 1e-5);
  EXPECT_CLOSE(r.dsink, test::central_differences(s, [&](const auto& v) { return loss(q, kv, v); }), 1e-5);
}

TEST(SparseAttention, EmptyRowsGiveZeroAndMinusInfinity) {
  const Problem p = make(3, 2, 4, 4, 8, 4, [](int64_t) { return 0; });
  const Result r = run(p, test::random({3, 2, 4}, 3));
  for (int64_t i = 0; i < r.out.size(); ++i) EXPECT_EQ(r.out[i], 0);
  for (int64_t i = 0; i < r.lse.size(); ++i) EXPECT_EQ(r.lse[i], -INFINITY);
  for (int64_t i = 0; i < r.dq.size(); ++i) EXPECT_EQ(r.dq[i], 0);
  for (int64_t i = 0; i < r.dkv.size(); ++i) EXPECT_EQ(r.dkv[i], 0);
}

TEST(SparseAttention, ManyQueriesOfOneRowAddUpTheSameTwice) {
  const Problem p = make(300, 2, 16, 8, 20, 13, [](int64_t) { return 13; });
  const HostTensor dout = test::random({300, 2, 8}, 3);
  const Result a = run(p, dout), b = run(p, dout);
  EXPECT_TRUE(test::same_bits(a.dkv, b.dkv));
  EXPECT_TRUE(test::same_bits(a.dq, b.dq));
  EXPECT_TRUE(test::same_bits(a.out, b.out));
}

TEST(SparseAttention, HugeLogitsStayFinite) {
  Problem p = make(1, 1, 2, 2, 4, 4, [](int64_t) { return 4; });
  for (int64_t i = 0; i < p.q.size(); ++i) p.q[i] *= 1e4f;
  const Result r = run(p, test::random({1, 1, 2}, 3));
  for (int64_t i = 0; i < r.out.size(); ++i) EXPECT_TRUE(std::isfinite(r.out[i]));
  for (int64_t i = 0; i < r.dkv.size(); ++i) EXPECT_TRUE(std::isfinite(r.dkv[i]));
}

}  // namespace
}  // namespace hyscale
