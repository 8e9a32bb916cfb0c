#include "kernels/swiglu/swiglu.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

TEST(SwigluCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (float limit : {kNoLimit, 1.5f})
    for (int64_t rows : {0, 1, 5, 130})
      for (int64_t width : {1, 7, 64, 1032}) {
        SCOPED_TRACE(concat(rows, " rows of ", width));
        const Both gate_up = test::in_bf16(test::random({rows, 2 * width}, 1, 3)), dy = test::in_bf16(test::random({rows, width}, 2));
        const Both y = test::bf16_out({rows, width}), gradient = test::bf16_out({rows, 2 * width}), in_place = test::in_bf16(gate_up.host());
        test::on_both([&](Device d) {
          swiglu({gate_up[d], y[d], {}, limit});
          swiglu_backward({gate_up[d], dy[d], gradient[d], {}, limit});
          swiglu_backward({in_place[d], dy[d], in_place[d], {}, limit});
        });
        EXPECT_AS_ON_CPU(y, test::kBf16);
        EXPECT_AS_ON_CPU(gradient, test::kBf16);
        EXPECT_TRUE(test::same_bits(in_place.download(), gradient.download()));
      }
}

// exp overflows on both sides: silu(-100) is 0, silu(100) is 100.
TEST(SwigluCuda, LargeGatesStayFinite) {
  SKIP_WITHOUT_CUDA();
  test::HostTensor x({1, 4});
  x[0] = -100, x[1] = 100, x[2] = 1, x[3] = 1;
  const Both gate_up = test::in_bf16(x), y = test::bf16_out({1, 2}), dy = test::in_bf16(test::filled({1, 2}, 1)), gradient = test::bf16_out({1, 4});
  test::on_both([&](Device d) {
    swiglu({gate_up[d], y[d], {}});
    swiglu_backward({gate_up[d], dy[d], gradient[d], {}});
  });
  EXPECT_AS_ON_CPU(y, test::kBf16);
  EXPECT_AS_ON_CPU(gradient, test::kBf16);
}

}  // namespace
}  // namespace hyscale
