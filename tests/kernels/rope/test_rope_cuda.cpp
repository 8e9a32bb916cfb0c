#include "kernels/rope/rope.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

// Columns [from, from + dims) of each head turn, the rest stays. Positions reach a million: there an angle of 1e6 rounds to 0.06.
void expect_as_on_cpu(int64_t tokens, int64_t heads, int64_t dims, int64_t from, bool interleaved, bool inverse, DType type) {
  SCOPED_TRACE(concat(tokens, " tokens, ", heads, " heads, ", dims, " from ", from, interleaved ? ", interleaved" : ", halves", inverse ? ", inverse" : ""));
  test::HostTensor positions(DType::i32, {tokens}), frequencies({dims / 2});
  for (int64_t t = 0; t < tokens; ++t) positions.i32()[t] = static_cast<int32_t>(t * 1000003 % 1048576);
  const std::vector<float> inv_freq = rope_inverse_frequencies(1e6f, dims);
  std::copy(inv_freq.begin(), inv_freq.end(), frequencies.f32());
  const Both at = test::as_is(positions), f = test::as_is(frequencies), x(test::random({tokens, heads, from + dims}, 1), type);
  test::on_both([&](Device d) { rope({x[d].slice(2, from, from + dims), at[d], f[d], interleaved, inverse, {}}); });
  EXPECT_AS_ON_CPU(x, type == DType::bf16 ? test::kBf16 : test::kF32);
}

TEST(RopeCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 37})
    for (int64_t dims : {2, 6, 64})
      for (int form = 0; form < 8; ++form) expect_as_on_cpu(tokens, form & 4 ? 3 : 1, dims, form & 4 ? 5 : 0, form & 1, form & 2, form & 4 ? DType::bf16 : DType::f32);
}

}  // namespace
}  // namespace hyscale
