#include "kernels/rope/rope.h"

#include <complex>

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

HostTensor frequencies(int64_t dims) {
  const std::vector<float> f = rope_inverse_frequencies(10000, dims);
  HostTensor t({dims / 2});
  std::copy(f.begin(), f.end(), t.f32());
  return t;
}

TEST(Rope, PairsTurnAsComplexNumbers) {
  const int64_t tokens = 5, heads = 3, dims = 8;
  const HostTensor x = test::random({tokens, heads, dims}, 1), positions = test::ints({tokens}, {0, 1, 7, 4095, 1000000}), inv = frequencies(dims);
  for (bool interleaved : {true, false}) {
    HostTensor y = x;
    rope({y, positions, inv, interleaved, false, {}});
    std::vector<double> expected(static_cast<size_t>(x.size()));
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < dims / 2; ++i) {
          const int64_t row = (t * heads + h) * dims, a = row + (interleaved ? 2 * i : i), b = row + (interleaved ? 2 * i + 1 : i + dims / 2);
          // The angle is rounded to f32 before the turn, as in the recipe.
          const double angle = static_cast<float>(positions.i32()[t]) * inv[i];
          const std::complex<double> z = std::complex<double>(x[a], x[b]) * std::polar(1.0, angle);
          expected[static_cast<size_t>(a)] = z.real();
          expected[static_cast<size_t>(b)] = z.imag();
        }
    EXPECT_CLOSE(y, expected, 1e-6);
  }
}

TEST(Rope, InverseUndoesAndIsTheTranspose) {
  const HostTensor x = test::random({4, 2, 6}, 1), dy = test::random({4, 2, 6}, 2), positions = test::ints({4}, {0, 3, 100, 5000}), inv = frequencies(6);
  HostTensor y = x, dx = dy;
  rope({y, positions, inv, true, false, {}});
  rope({dx, positions, inv, true, true, {}});
  double forward = 0, backward = 0;
  for (int64_t i = 0; i < x.size(); ++i) forward += double{y[i]} * dy[i], backward += double{x[i]} * dx[i];
  EXPECT_NEAR(forward, backward, 1e-5);
  rope({y, positions, inv, true, true, {}});
  EXPECT_CLOSE(y, test::doubles(x), 1e-6);
}

TEST(Rope, OnlyTheViewIsTurned) {
  HostTensor wide = test::random({3, 2, 10}, 1);
  const HostTensor before = wide, positions = test::ints({3}, {5, 6, 7}), inv = frequencies(4);
  rope({wide.t().slice(2, 6, 10), positions, inv, true, false, {}});
  for (int64_t i = 0; i < wide.size(); ++i) {
    if (i % 10 < 6) {
      EXPECT_EQ(wide[i], before[i]);
    } else {
      EXPECT_NE(wide[i], before[i]);
    }
  }
}

// DeepSeek-V4: pairs below 15 stay, pairs from 25 on are divided by 16, with a straight ramp between.
TEST(Rope, YarnFrequenciesOfDeepSeekV4) {
  const std::vector<float> plain = rope_inverse_frequencies(160000, 64), yarn = yarn_inverse_frequencies(160000, 64, {16, 65536, 32, 1});
  for (size_t i = 0; i < 32; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - 15) / 10, 0.0, 1.0);
    EXPECT_NEAR(yarn[i], plain[i] * (ramp / 16 + 1 - ramp), 1e-6 * plain[i]) << "pair " << i;
  }
}

TEST(Rope, NoTokens) {
  HostTensor x({0, 2, 4});
  rope({x, HostTensor(DType::i32, {0}), frequencies(4), true, false, {}});
}

}  // namespace
}  // namespace hyscale
