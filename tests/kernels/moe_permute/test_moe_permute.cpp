#include "kernels/moe_permute/moe_permute.h"

#include <algorithm>

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

struct Order {
  HostTensor offsets, row_of_slot, slot_of_row;
  ExpertOrder order() const { return {offsets, row_of_slot, slot_of_row}; }
};
Order make_order(const HostTensor& experts, int64_t num_experts) {
  Order o{HostTensor(DType::i32, {num_experts + 1}), HostTensor(DType::i32, {experts.size()}), HostTensor(DType::i32, {experts.size()})};
  make_expert_order({experts, o.order(), {}, {}});
  return o;
}

TEST(MoePermute, OrderIsStableAndEmptyExpertsHaveNoRows) {
  const HostTensor experts = test::ints({3, 2}, {2, 0, 2, 4, 0, 2});
  const Order o = make_order(experts, 5);
  EXPECT_TRUE(test::same_bits(o.offsets, test::ints({6}, {0, 2, 2, 5, 5, 6})));
  EXPECT_TRUE(test::same_bits(o.slot_of_row, test::ints({6}, {1, 4, 0, 2, 5, 3})));
  for (int32_t s = 0; s < 6; ++s) EXPECT_EQ(o.slot_of_row.i32()[o.row_of_slot.i32()[s]], s);
}

TEST(MoePermute, NoTokens) {
  const Order o = make_order(HostTensor(DType::i32, {0, 2}), 3);
  EXPECT_TRUE(test::same_bits(o.offsets, test::ints({4}, {0, 0, 0, 0})));
  HostTensor x({0, 4}), rows({0, 4});
  gather_rows(rows, x, o.order(), {});
}

TEST(MoePermute, GatherCombineAndTheirBackward) {
  const int64_t tokens = 5, k = 2, columns = 7;
  const HostTensor experts = test::ints({tokens, k}, {2, 0, 1, 2, 0, 1, 2, 1, 0, 2}), x = test::random({tokens, columns}, 1);
  const HostTensor g = test::random({tokens, k}, 2), dy = test::random({tokens, columns}, 3);
  const Order o = make_order(experts, 3);
  HostTensor rows({tokens * k, columns}), y({tokens, columns}), drows({tokens * k, columns}), dg({tokens, k}), dx = test::filled({tokens, columns}, 1);
  gather_rows(rows, x, o.order(), {});
  for (int64_t r = 0; r < tokens * k; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      EXPECT_EQ(rows[r * columns + c], x[o.slot_of_row.i32()[r] / k * columns + c]);
      rows[r * columns + c] *= static_cast<float>(r + 1);  // each expert row becomes its own
    }
  combine_rows(y, rows, g, o.order(), false, {});
  combine_rows_backward({rows, g, dy, o.order(), drows, dg, {}});
  gather_rows_backward(dx, drows, o.order(), true, {});
  std::vector<double> ey(static_cast<size_t>(tokens * columns)), edx(ey.size(), 1), edg(static_cast<size_t>(tokens * k));
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t j = 0; j < k; ++j)
      for (int64_t c = 0; c < columns; ++c) {
        const double row = rows[o.row_of_slot.i32()[t * k + j] * columns + c];
        ey[static_cast<size_t>(t * columns + c)] += g[t * k + j] * row;
        edg[static_cast<size_t>(t * k + j)] += dy[t * columns + c] * row;
        edx[static_cast<size_t>(t * columns + c)] += double{g[t * k + j]} * dy[t * columns + c];
      }
  EXPECT_CLOSE(y, ey, 1e-6);
  EXPECT_CLOSE(dg, edg, 1e-6);
  EXPECT_CLOSE(dx, edx, 1e-6);
}

}  // namespace
}  // namespace hyscale
