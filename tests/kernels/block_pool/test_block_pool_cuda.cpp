#include "kernels/block_pool/block_pool.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;
using test::HostTensor;

void expect_as_on_cpu(DType type, int64_t tokens, int64_t ratio, int64_t dims) {
  SCOPED_TRACE(concat(dtype_name(type), ", ", tokens, " tokens, ratio ", ratio, ", ", dims, " columns"));
  std::vector<int32_t> first;  // one token lies between the halves
  for (int64_t t = 0; t + ratio <= tokens; t += ratio + (t < tokens / 2 && t + ratio >= tokens / 2)) first.push_back(static_cast<int32_t>(t));
  const int64_t blocks = static_cast<int64_t>(first.size());
  const Both x(test::random({tokens, dims}, 1), type), starts = test::as_is(test::ints({blocks}, first)), dpooled(test::random({blocks, dims}, 2), type);
  const Both pooled(HostTensor({blocks, dims}), type), dx(HostTensor({tokens, dims}), type);
  test::on_both([&](Device d) {
    block_pool({x[d], starts[d], ratio, pooled[d], {}});
    block_pool_backward({dpooled[d], starts[d], ratio, dx[d], {}});
  });
  const double tolerance = type == DType::bf16 ? test::kBf16 : test::kF32;
  EXPECT_AS_ON_CPU(pooled, tolerance);
  EXPECT_AS_ON_CPU(dx, tolerance);
}

TEST(BlockPoolCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (DType type : {DType::f32, DType::bf16})
    for (int64_t tokens : {0, 1, 4, 13, 1025})
      for (int64_t ratio : {1, 4}) expect_as_on_cpu(type, tokens, ratio, tokens == 13 ? 5 : 128);
}

}  // namespace
}  // namespace hyscale
