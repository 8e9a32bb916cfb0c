#include "kernels/elementwise/elementwise.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

TEST(Elementwise, AddAndScale) {
  const HostTensor a = test::random({3, 5}, 1), b = test::random({3, 5}, 2);
  HostTensor y = a;
  add(y, y, b, {});
  scale(y, 2, {});
  for (int64_t i = 0; i < 15; ++i) EXPECT_EQ(y[i], 2 * (a[i] + b[i]));
  HostTensor none({0});
  add(none, none, none, {});
}

TEST(Elementwise, CastRoundsToNearestEvenThroughStridedViews) {
  const HostTensor wide = test::random({4, 3, 6}, 1);
  HostTensor half(DType::bf16, {4, 3, 2}), back({4, 3, 2});
  cast(half, wide.t().slice(2, 4, 6), {});
  cast(back, half, {});
  for (int64_t r = 0; r < 12; ++r)
    for (int64_t c = 0; c < 2; ++c) EXPECT_EQ(back[r * 2 + c], bf16_to_float(float_to_bf16(wide[r * 6 + 4 + c])));
}

}  // namespace
}  // namespace hyscale
