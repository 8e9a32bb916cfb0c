#include "kernels/ngram_gate/ngram_gate.h"

#include <numeric>

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

std::vector<double> naive(const std::vector<double>& keys, const std::vector<double>& queries, const std::vector<double>& values, size_t streams, size_t columns) {
  std::vector<double> out(keys.size());
  for (size_t row = 0; row < keys.size() / columns; ++row) {
    const double u = std::inner_product(keys.begin() + static_cast<ptrdiff_t>(row * columns), keys.begin() + static_cast<ptrdiff_t>((row + 1) * columns),
                                        queries.begin() + static_cast<ptrdiff_t>(row * columns), 0.0) / std::sqrt(static_cast<double>(columns));
    const double root = std::sqrt(std::max(std::abs(u), 1e-6)), share = 1 / (1 + std::exp(u > 0 ? -root : u < 0 ? root : 0));
    for (size_t c = 0; c < columns; ++c) out[row * columns + c] = share * values[row / streams * columns + c];
  }
  return out;
}

TEST(NgramGate, ForwardAndBackwardMatchCentralDifferences) {
  for (int64_t tokens : {0, 1, 5})
    for (int64_t columns : {2, 7}) {
      const Shape shape{tokens, 4, columns};
      const HostTensor keys = test::random(shape, 1), queries = test::random(shape, 2), values = test::random({tokens, columns}, 3), dout = test::random(shape, 4);
      HostTensor scores({tokens, 4}), out(shape), dkeys(shape), dqueries(shape), dvalues({tokens, columns});
      ngram_gate({keys, queries, values, scores, out, {}});
      ngram_gate_backward({keys, queries, values, scores, dout, dkeys, dqueries, dvalues, {}});
      const std::vector<double> k = test::doubles(keys), q = test::doubles(queries), v = test::doubles(values), d = test::doubles(dout);
      const size_t c = static_cast<size_t>(columns);
      const auto loss = [&](const auto& a, const auto& b, const auto& e) {
        const std::vector<double> o = naive(a, b, e, 4, c);
        return std::inner_product(o.begin(), o.end(), d.begin(), 0.0);
      };
      EXPECT_CLOSE(out, naive(k, q, v, 4, c), 1e-6);
      // The root is steep near 0: the smallest score here is about 1e-2.
      EXPECT_CLOSE(dkeys, test::central_differences(k, [&](const auto& x) { return loss(x, q, v); }), 1e-4);
      EXPECT_CLOSE(dqueries, test::central_differences(q, [&](const auto& x) { return loss(k, x, v); }), 1e-4);
      EXPECT_CLOSE(dvalues, test::central_differences(v, [&](const auto& x) { return loss(k, q, x); }), 1e-5);
    }
}

TEST(NgramGate, AScoreOfZeroHasHalfAShareAndNoSlope) {
  const HostTensor keys = test::filled({1, 1, 4}, 0), queries = test::filled({1, 1, 4}, 1), values = test::filled({1, 4}, 2);
  HostTensor scores({1, 1}), out({1, 1, 4}), dkeys({1, 1, 4}), dqueries({1, 1, 4}), dvalues({1, 4});
  ngram_gate({keys, queries, values, scores, out, {}});
  ngram_gate_backward({keys, queries, values, scores, test::filled({1, 1, 4}, 1), dkeys, dqueries, dvalues, {}});
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(dkeys[0], 0);
  EXPECT_EQ(dvalues[0], 0.5f);
}

}  // namespace
}  // namespace hyscale
