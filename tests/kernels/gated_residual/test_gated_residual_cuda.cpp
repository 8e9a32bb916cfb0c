#include "kernels/gated_residual/gated_residual.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

TEST(GatedResidualCuda, ReadIsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 130})
    for (int64_t streams : {1, 4})
      for (int64_t columns : {1, 7, 264}) {
        SCOPED_TRACE(concat(tokens, " tokens, ", streams, " streams of ", columns));
        const Shape wide{tokens, streams, columns}, narrow{tokens, columns};
        const Both normed = test::in_bf16(test::random(wide, 1)), gates = test::in_bf16(test::random(wide, 2, 2)), dx = test::in_bf16(test::random(narrow, 3));
        const Both x = test::bf16_out(narrow), dnormed = test::bf16_out(wide), dgates = test::bf16_out(wide);
        test::on_both([&](Device d) {
          streams_read({normed[d], gates[d], x[d], {}});
          streams_read_backward({normed[d], gates[d], dx[d], dnormed[d], dgates[d], {}});
        });
        EXPECT_AS_ON_CPU(x, test::kBf16);
        EXPECT_AS_ON_CPU(dnormed, test::kBf16);
        EXPECT_AS_ON_CPU(dgates, test::kBf16);
      }
}

TEST(GatedResidualCuda, WriteIsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 130})
    for (int64_t streams : {1, 4})
      for (int64_t columns : {1, 7, 264, 2560})
        for (bool weighted : {false, true}) {
          SCOPED_TRACE(concat(tokens, " tokens, ", streams, " streams of ", columns, weighted ? ", weighted" : ""));
          const Shape wide{tokens, streams, columns}, narrow{tokens, columns};
          const Both before = test::in_bf16(test::random(wide, 1)), logits = test::as_is(test::random({tokens, streams}, 2)), y = test::in_bf16(test::random(narrow, 3));
          const Both dout = test::in_bf16(test::random(wide, 4)), out = test::bf16_out(wide), alone = test::bf16_out(wide), dy = test::bf16_out(narrow), dlogits = test::f32_out({tokens, streams});
          const Both in_place = test::in_bf16(before.host());
          test::on_both([&](Device d) {
            const Tensor u = weighted ? logits[d] : Tensor(), du = weighted ? dlogits[d] : Tensor();
            streams_write({before[d], u, y[d], out[d], {}});
            streams_write({{}, u, y[d], alone[d], {}});
            streams_write({in_place[d], u, y[d], in_place[d], {}});
            streams_write_backward({u, weighted ? y[d] : Tensor(), dout[d], dy[d], du, {}});
          });
          EXPECT_AS_ON_CPU(out, test::kBf16);
          EXPECT_AS_ON_CPU(alone, test::kBf16);
          EXPECT_TRUE(test::same_bits(in_place.download(), out.download()));
          EXPECT_AS_ON_CPU(dy, test::kBf16);
          if (weighted) {
            EXPECT_AS_ON_CPU(dlogits, test::kF32);
          }
        }
}

}  // namespace
}  // namespace hyscale
