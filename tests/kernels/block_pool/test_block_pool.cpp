#include "kernels/block_pool/block_pool.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

TEST(BlockPool, MeansOfBlocksAndTheirGradients) {
  // Documents of 5, 2 and 6 tokens: the second has no block of 3, the last token pair of the first has none either.
  const HostTensor x = test::random({13, 4}, 1), first = test::ints({3}, {0, 7, 10}), dpooled = test::random({3, 4}, 2);
  HostTensor pooled({3, 4}), dx({13, 4});
  block_pool({x, first, 3, pooled, {}});
  block_pool_backward({dpooled, first, 3, dx, {}});
  std::vector<double> expected(52, 0.0);
  for (int64_t e = 0; e < 3; ++e)
    for (int64_t d = 0; d < 4; ++d) {
      double sum = 0;
      for (int64_t i = 0; i < 3; ++i) {
        sum += x[(first.i32()[e] + i) * 4 + d];
        expected[static_cast<size_t>((first.i32()[e] + i) * 4 + d)] = dpooled[e * 4 + d] / 3.0;
      }
      EXPECT_NEAR(pooled[e * 4 + d], sum / 3, 1e-6);
    }
  EXPECT_CLOSE(dx, expected, 1e-6);
}

TEST(BlockPool, TokensWithoutBlocks) {
  const HostTensor x = test::random({2, 4}, 1), none = test::ints({0}, {});
  HostTensor pooled({0, 4}), dx({2, 4});
  block_pool({x, none, 4, HostTensor({0, 4}), {}});
  EXPECT_THROW(block_pool({x, test::ints({1}, {0}), 4, HostTensor({1, 4}), {}}), InternalError);
  block_pool_backward({HostTensor({0, 4}), none, 1, dx, {}});
  EXPECT_EQ(test::doubles(dx), std::vector<double>(8, 0.0));
}

}  // namespace
}  // namespace hyscale
