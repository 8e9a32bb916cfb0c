#include "kernels/newton_schulz/newton_schulz.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

constexpr NewtonSchulzStep kSteps[] = {{3.4445f, -4.7750f, 2.0315f}, {3.4445f, -4.7750f, 2.0315f}, {2, -1.5f, 0.5f}};
using Matrix = std::vector<double>;

Matrix product(const Matrix& a, const Matrix& b, size_t m, size_t k, size_t n) {
  Matrix c(m * n);
  for (size_t i = 0; i < m; ++i)
    for (size_t x = 0; x < k; ++x)
      for (size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + x] * b[x * n + j];
  return c;
}
Matrix transposed(const Matrix& a, size_t m, size_t n) {
  Matrix t(m * n);
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j) t[j * m + i] = a[i * n + j];
  return t;
}

// The definition in f64, always from the left.
Matrix naive(Matrix x, size_t m, size_t n, std::span<const NewtonSchulzStep> steps) {
  double norm = 0;
  for (double v : x) norm += v * v;
  for (double& v : x) v = norm > 0 ? v / std::sqrt(norm) : 0;
  for (const NewtonSchulzStep& s : steps) {
    const Matrix gram = product(x, transposed(x, m, n), m, n, m), once = product(gram, x, m, m, n), twice = product(gram, once, m, m, n);
    for (size_t i = 0; i < x.size(); ++i) x[i] = double{s.a} * x[i] + double{s.b} * once[i] + double{s.c} * twice[i];
  }
  return x;
}

HostTensor orthogonalized(const Tensor& g, std::span<const NewtonSchulzStep> steps) {
  HostTensor x(g.shape());
  NewtonSchulz n{g, x, steps, {}, {}};
  const HostTensor space = test::workspace(newton_schulz_workspace_bytes(n));
  n.workspace = space;
  newton_schulz(n);
  return x;
}

TEST(NewtonSchulz, EveryMatrixOfABatchMatchesTheDefinition) {
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{1, 1, 7}, Shape{3, 7, 4}, Shape{2, 3, 5}, Shape{2, 64, 64}, Shape{1, 65, 33}, Shape{2, 0, 4}})
    for (size_t steps : {0, 1, 2, 3}) {
      const HostTensor g = test::random(shape, 1, 1e-3f), x = orthogonalized(g, {kSteps, steps});
      const size_t m = static_cast<size_t>(shape[1]), n = static_cast<size_t>(shape[2]);
      Matrix expected;
      for (int64_t b = 0; b < shape[0]; ++b) {
        const std::vector<double> all = test::doubles(g);
        const auto begin = all.begin() + b * shape[1] * shape[2];
        const Matrix one = naive(Matrix(begin, begin + shape[1] * shape[2]), m, n, {kSteps, steps});
        expected.insert(expected.end(), one.begin(), one.end());
      }
      EXPECT_CLOSE(x, expected, 1e-5) << to_string(shape) << ", " << steps << " steps";
    }
}

TEST(NewtonSchulz, ABatchMayBeStridedAndIsAsItsMatricesOneByOne) {
  const HostTensor all = test::random({4, 6, 5}, 2);
  const Tensor every_second(all.t().raw(), DType::f32, Device{}, {2, 6, 5}, {60, 5, 1});
  const HostTensor x = orthogonalized(every_second, kSteps);
  for (int64_t b = 0; b < 2; ++b) {
    const HostTensor one = orthogonalized(all.t().slice(0, 2 * b, 2 * b + 1), kSteps);
    for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(one[i], x[b * 30 + i]);
  }
}

TEST(NewtonSchulz, TheScaleOfTheGradientDoesNotMatterAndZeroStaysZero) {
  const HostTensor g = test::random({1, 9, 5}, 3), tiny = test::random({1, 9, 5}, 3, 1e-25f), zeros = test::filled({1, 9, 5}, 0);
  EXPECT_CLOSE(orthogonalized(tiny, kSteps), test::doubles(orthogonalized(g, kSteps)), 1e-5);
  EXPECT_TRUE(test::same_bits(orthogonalized(zeros, kSteps), zeros));
}

}  // namespace
}  // namespace hyscale
