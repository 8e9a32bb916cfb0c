#include "tests/kernels/block_attention/block_case.h"

namespace hyscale {
namespace {

using test::HostTensor;
using Case = test::BlockCase;

double dot(const double* a, const double* b, int64_t n) { return std::inner_product(a, a + n, b, 0.0); }

// Output in f64; mass, when given, gets the head sums of every attended token, [T][tokens].
std::vector<double> naive(const Case& c, const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v, std::vector<std::vector<double>>* mass = nullptr) {
  std::vector<double> out(q.size(), 0.0);
  for (int64_t t = 0; t < c.queries(); ++t) {
    const std::vector<int64_t> s = c.attended(t);
    if (mass) mass->emplace_back(s.size(), 0.0);
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t g = h / (c.heads / c.groups), row = (t * c.heads + h) * c.dims;
      std::vector<double> p;
      for (int64_t token : s) p.push_back(std::exp(0.7f * dot(q.data() + row, k.data() + (token * c.groups + g) * c.dims, c.dims)));
      const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      for (size_t j = 0; j < s.size(); ++j) {
        if (mass) mass->back()[j] += p[j] / sum;
        for (int64_t d = 0; d < c.dims; ++d) out[static_cast<size_t>(row + d)] += p[j] / sum * v[static_cast<size_t>((s[j] * c.groups + g) * c.dims + d)];
      }
    }
  }
  return out;
}

struct Result {
  HostTensor out, lse, dq, dk, dv, mass;
};
Result run(const Case& c) {
  const Shape of_keys{c.tokens, c.groups, c.dims};
  Result r{HostTensor(c.q.t().shape()), HostTensor({c.queries(), c.heads}), HostTensor(c.q.t().shape()), test::filled(of_keys, 0), test::filled(of_keys, 0),
           HostTensor({c.queries(), c.k})};
  const HostTensor positions = test::ints({c.queries()}, c.positions), first = test::ints({static_cast<int64_t>(c.first_token.size())}, c.first_token);
  const HostTensor indices = test::ints({c.queries(), c.k}, c.indices), counts = test::ints({c.queries()}, c.counts);
  const AttendedBlocks blocks{c.ratio, first, positions, {indices, counts}, c.first_row};
  BlockAttentionForward f{c.q, c.keys, c.values, blocks, 0.7f, r.out, r.lse, {}, {}};
  const HostTensor forward_space = test::workspace(block_attention_forward_workspace_bytes(f));
  f.workspace = forward_space;
  block_attention_forward(f);
  BlockAttentionBackward b{c.q, c.keys, c.values, blocks, 0.7f, r.out, r.lse, c.dout, r.dq, r.dk, r.dv, r.mass, {}, {}, false};
  const HostTensor space = test::workspace(block_attention_backward_workspace_bytes(b));
  b.workspace = space;
  block_attention_backward(b);
  return r;
}

TEST(BlockAttention, ForwardAndBackwardMatchTheDefinition) {
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{}, {1}, {3}, {4}, {23}, {9, 1, 13}})
    for (int64_t k : {1, 3, 8}) {
      const Case c(lengths, k, lengths.size() == 3 ? 6 : 0);  // with first_row in the midst of a document
      const Result r = run(c);
      const std::vector<double> q = test::doubles(c.q), keys = test::doubles(c.keys), v = test::doubles(c.values), d = test::doubles(c.dout);
      const auto loss = [&](const auto& a, const auto& b, const auto& e) {
        const std::vector<double> out = naive(c, a, b, e);
        return std::inner_product(out.begin(), out.end(), d.begin(), 0.0);
      };
      EXPECT_CLOSE(r.out, naive(c, q, keys, v), 1e-6);
      EXPECT_CLOSE(r.dq, test::central_differences(q, [&](const auto& x) { return loss(x, keys, v); }), 1e-5);
      EXPECT_CLOSE(r.dk, test::central_differences(keys, [&](const auto& x) { return loss(q, x, v); }), 1e-5);
      EXPECT_CLOSE(r.dv, test::central_differences(v, [&](const auto& x) { return loss(q, keys, x); }), 1e-5);
    }
}

TEST(BlockAttention, MassOfABlockIsItsLargestHeadSum) {
  const Case c({23, 6}, 3);
  const Result r = run(c);
  std::vector<std::vector<double>> mass;
  naive(c, test::doubles(c.q), test::doubles(c.keys), test::doubles(c.values), &mass);
  for (int64_t t = 0; t < c.queries(); ++t)
    for (int64_t j = 0; j < c.k; ++j) {
      const auto block = mass[static_cast<size_t>(t)].begin() + j * c.ratio;
      const double expected = j < c.counts[static_cast<size_t>(t)] ? *std::max_element(block, block + c.ratio) : 0;
      EXPECT_NEAR(r.mass[t * c.k + j], expected, 1e-6) << "token " << t << ", block " << j;
    }
}

TEST(BlockAttention, RunsAreBitEqualAndATokenMayBeWithoutKeys) {
  Case c({23, 6}, 3);
  const Result a = run(c), b = run(c);
  EXPECT_TRUE(test::same_bits(a.dk, b.dk));
  EXPECT_TRUE(test::same_bits(a.dv, b.dv));
  c.counts[3] = 0;  // the fourth token ends a block: no tail, and now no block
  const Result r = run(c);
  for (int64_t i = 0; i < c.heads * c.dims; ++i) {
    EXPECT_EQ(r.out[3 * c.heads * c.dims + i], 0);
    EXPECT_EQ(r.dq[3 * c.heads * c.dims + i], 0);
  }
  EXPECT_EQ(r.lse[3 * c.heads], -INFINITY);
}

}  // namespace
}  // namespace hyscale
