#include "kernels/gemm/gemm.h"

#include "kernels/gemm/grouped_gemm.h"
#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

double at(const Tensor& t, bool transpose, int64_t i, int64_t j) { return transpose ? t.f32()[j * t.stride(0) + i * t.stride(1)] : t.f32()[i * t.stride(0) + j * t.stride(1)]; }

std::vector<double> naive(const Gemm& g, const std::vector<double>& c) {
  std::vector<double> out;
  const int64_t k = g.a.size(g.transpose_a ? 0 : 1);
  for (int64_t i = 0; i < g.c.size(0); ++i)
    for (int64_t j = 0; j < g.c.size(1); ++j) {
      double sum = 0;
      for (int64_t x = 0; x < k; ++x) sum += at(g.a, g.transpose_a, i, x) * at(g.b, g.transpose_b, x, j);
      out.push_back(g.alpha * sum + (g.beta == 0 ? 0 : g.beta * c[static_cast<size_t>(i * g.c.size(1) + j)]));
    }
  return out;
}

TEST(Gemm, EveryTranspositionAndSizeMatchesTheDefinition) {
  for (int64_t m : {1, 7, 64})
    for (int64_t n : {1, 5, 65})
      for (int64_t k : {1, 3, 128})
        for (int form = 0; form < 4; ++form) {
          const bool ta = form & 1, tb = form & 2;
          const HostTensor a = test::random(ta ? Shape{k, m} : Shape{m, k}, 1), b = test::random(tb ? Shape{n, k} : Shape{k, n}, 2);
          HostTensor c = test::random({m, n}, 3);
          Gemm g{.a = a, .b = b, .c = c, .transpose_a = ta, .transpose_b = tb, .alpha = 0.5f, .beta = 2};
          const std::vector<double> expected = naive(g, test::doubles(c));
          gemm(g);
          EXPECT_CLOSE(c, expected, 1e-5);
        }
}

TEST(Gemm, BetaZeroNeverReadsTheOutput) {
  const HostTensor a = test::random({3, 4}, 1), b = test::random({4, 5}, 2);
  HostTensor c({3, 5});  // NaN
  const Gemm g{.a = a, .b = b, .c = c};
  gemm(g);
  EXPECT_CLOSE(c, naive(g, {}), 1e-6);
}

TEST(Gemm, EmptySizes) {
  HostTensor c = test::filled({3, 5}, 2);
  gemm({.a = HostTensor({3, 0}), .b = HostTensor({0, 5}), .c = c, .beta = 0.5f});
  EXPECT_EQ(c[7], 1.0f);
  HostTensor none({0, 5});
  gemm({.a = HostTensor({0, 4}), .b = test::random({4, 5}, 1), .c = none});
}

TEST(Gemm, BatchesOfStridedHeads) {
  const int64_t tokens = 9, heads = 3, wide = 10, from = 6, to = 4;
  const HostTensor x = test::random({tokens, heads, wide}, 1), w = test::random({heads, from, to}, 2);
  HostTensor y({tokens, heads, to});
  const Tensor part = x.t().slice(2, 0, from);
  gemm({.a = Tensor(part.raw(), DType::f32, {}, {heads, tokens, from}, {part.stride(1), part.stride(0), 1}), .b = w,
        .c = Tensor(y.t().raw(), DType::f32, {}, {heads, tokens, to}, {to, heads * to, 1})});
  std::vector<double> expected;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < to; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < from; ++i) sum += double{x[(t * heads + h) * wide + i]} * w[(h * from + i) * to + j];
        expected.push_back(sum);
      }
  EXPECT_CLOSE(y, expected, 1e-5);
}

TEST(Gemm, ShapesThatDisagreeAreNamed) {
  HostTensor c({3, 5});
  EXPECT_THROW(gemm({.a = HostTensor({3, 4}), .b = HostTensor({5, 5}), .c = c}), InternalError);
}

TEST(GroupedGemm, EveryGroupUsesItsWeightsAndEmptyGroupsAreFine) {
  const int64_t rows = 11, k = 5, n = 7, experts = 4;
  const HostTensor offsets = test::ints({experts + 1}, {0, 0, 6, 7, 11}), x = test::random({rows, k}, 1), w = test::random({experts, n, k}, 2);
  const HostTensor dy = test::random({rows, n}, 3);
  HostTensor y({rows, n}), dx({rows, k}), dw = test::filled({experts, n, k}, 1);
  grouped_gemm_forward({x, w, y, offsets, {}});
  grouped_gemm_dgrad({dx, w, dy, offsets, {}});
  grouped_gemm_wgrad({x, dw, dy, offsets, {}});
  std::vector<double> ey(rows * n), edx(rows * k), edw(experts * n * k, 1);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t e = r < 6 ? 1 : r < 7 ? 2 : 3;
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < k; ++i) {
        const double weight = w[(e * n + j) * k + i];
        ey[static_cast<size_t>(r * n + j)] += weight * x[r * k + i];
        edx[static_cast<size_t>(r * k + i)] += weight * dy[r * n + j];
        edw[static_cast<size_t>((e * n + j) * k + i)] += double{dy[r * n + j]} * x[r * k + i];
      }
  }
  EXPECT_CLOSE(y, ey, 1e-5);
  EXPECT_CLOSE(dx, edx, 1e-5);
  EXPECT_CLOSE(dw, edw, 1e-5);
}

}  // namespace
}  // namespace hyscale
