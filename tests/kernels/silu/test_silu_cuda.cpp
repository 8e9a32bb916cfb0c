#include "kernels/silu/silu.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

TEST(SiluCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t rows : {0, 1, 5, 130})
      for (int64_t width : {1, 7, 320}) {
        SCOPED_TRACE(concat(rows, " rows of ", width, ", ", dtype_name(dtype)));
        const Shape shape{rows, width};
        const Both x(test::random(shape, 1, 3), dtype), dy(test::random(shape, 2), dtype), y(test::HostTensor(shape), dtype), dx(test::HostTensor(shape), dtype), in_place(dy.host(), dtype);
        test::on_both([&](Device d) {
          silu({x[d], y[d], {}});
          silu_backward({x[d], dy[d], dx[d], {}});
          silu_backward({x[d], in_place[d], in_place[d], {}});
        });
        EXPECT_AS_ON_CPU(y, dtype == DType::f32 ? test::kF32 : test::kBf16);
        EXPECT_AS_ON_CPU(dx, dtype == DType::f32 ? test::kF32 : test::kBf16);
        EXPECT_TRUE(test::same_bits(in_place.download(), dx.download()));
      }
}

}  // namespace
}  // namespace hyscale
