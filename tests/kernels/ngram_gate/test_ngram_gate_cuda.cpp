#include "kernels/ngram_gate/ngram_gate.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

TEST(NgramGateCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 130})
    for (int64_t streams : {1, 4})
      for (int64_t columns : {1, 7, 264, 2560}) {
        SCOPED_TRACE(concat(tokens, " tokens, ", streams, " streams of ", columns));
        const Shape wide{tokens, streams, columns}, narrow{tokens, columns};
        const Both keys = test::in_bf16(test::random(wide, 1)), queries = test::in_bf16(test::random(wide, 2)), values = test::in_bf16(test::random(narrow, 3)), scores = test::f32_out({tokens, streams});
        const Both out = test::bf16_out(wide), dout = test::in_bf16(test::random(wide, 4)), dkeys = test::bf16_out(wide), dqueries = test::bf16_out(wide), dvalues = test::bf16_out(narrow);
        test::on_both([&](Device d) { ngram_gate({keys[d], queries[d], values[d], scores[d], out[d], {}}); });
        EXPECT_AS_ON_CPU(out, test::kBf16);
        EXPECT_AS_ON_CPU(scores, test::kF32);
        const Both u = test::as_is(scores.host());  // the same for both forms: the gate's slope is steep near 0
        test::on_both([&](Device d) { ngram_gate_backward({keys[d], queries[d], values[d], u[d], dout[d], dkeys[d], dqueries[d], dvalues[d], {}}); });
        EXPECT_AS_ON_CPU(dkeys, test::kBf16);
        EXPECT_AS_ON_CPU(dqueries, test::kBf16);
        EXPECT_AS_ON_CPU(dvalues, test::kBf16);
      }
}

TEST(NgramGateCuda, AScoreOfZeroOpensTheGateHalfAndHasNoGradient) {
  SKIP_WITHOUT_CUDA();
  const Both keys = test::in_bf16(test::filled({1, 2, 16}, 0)), queries = test::in_bf16(test::random({1, 2, 16}, 1)), values = test::in_bf16(test::random({1, 16}, 2)), scores = test::f32_out({1, 2});
  const Both out = test::bf16_out({1, 2, 16}), dkeys = test::bf16_out({1, 2, 16}), dqueries = test::bf16_out({1, 2, 16}), dvalues = test::bf16_out({1, 16});
  test::on_both([&](Device d) {
    ngram_gate({keys[d], queries[d], values[d], scores[d], out[d], {}});
    ngram_gate_backward({keys[d], queries[d], values[d], scores[d], out[d], dkeys[d], dqueries[d], dvalues[d], {}});
  });
  EXPECT_SAME_AS_ON_CPU(scores);
  EXPECT_AS_ON_CPU(out, test::kBf16);
  EXPECT_SAME_AS_ON_CPU(dkeys);
  EXPECT_AS_ON_CPU(dvalues, test::kBf16);
}

}  // namespace
}  // namespace hyscale
