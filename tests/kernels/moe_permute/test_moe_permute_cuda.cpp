#include "kernels/moe_permute/moe_permute.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;
using test::HostTensor;

void expect_as_on_cpu(int64_t tokens, int64_t k, int64_t experts, int64_t columns) {
  SCOPED_TRACE(concat(tokens, " tokens, k ", k, " of ", experts, ", ", columns, " columns"));
  const int64_t slots = tokens * k;
  HostTensor choice(DType::i32, {tokens, k});
  const Rng rng(3);
  // Half of the experts stay without rows.
  for (int64_t i = 0; i < slots; ++i) choice.i32()[i] = static_cast<int32_t>(rng.below(static_cast<uint64_t>(i), static_cast<uint64_t>(experts + 1) / 2) * 2 % static_cast<uint64_t>(experts));
  const Both chosen = test::as_is(choice), offsets = test::as_is(HostTensor(DType::i32, {experts + 1})), row_of_slot = test::as_is(HostTensor(DType::i32, {slots}));
  const Both slot_of_row = test::as_is(HostTensor(DType::i32, {slots})), x = test::in_bf16(test::random({tokens, columns}, 1)), g = test::as_is(test::random({tokens, k}, 2));
  const Both dy = test::in_bf16(test::random({tokens, columns}, 3)), rows = test::bf16_out({slots, columns}), y = test::bf16_out({tokens, columns}), y_more = test::in_bf16(x.host());
  const Both results = test::in_bf16(test::random({slots, columns}, 4)), drows = test::in_bf16(results.host()), dg = test::f32_out({tokens, k});
  const Both dx = test::bf16_out({tokens, columns}), dx_more = test::in_bf16(x.host());
  const Both stream = test::f32_out({tokens, columns}), stream_more = test::as_is(test::random({tokens, columns}, 5));
  const auto order = [&](Device d) { return ExpertOrder{offsets[d], row_of_slot[d], slot_of_row[d]}; };
  test::on_both([&](Device d) { return make_expert_order_workspace_bytes({chosen[d], order(d), {}, {}}); },
                [&](Device d, const Tensor& space) {
                  make_expert_order({chosen[d], order(d), space, {}});
                  gather_rows(rows[d], x[d], order(d), {});
                  combine_rows(y[d], results[d], g[d], order(d), false, {});
                  combine_rows(y_more[d], results[d], g[d], order(d), true, {});
                  combine_rows(stream[d], results[d], g[d], order(d), false, {});
                  combine_rows(stream_more[d], results[d], g[d], order(d), true, {});
                  gather_rows_backward(dx[d], results[d], order(d), false, {});
                  gather_rows_backward(dx_more[d], results[d], order(d), true, {});
                  combine_rows_backward({drows[d], g[d], dy[d], order(d), drows[d], dg[d], {}});  // in place
                });
  for (const Both* exact : {&offsets, &row_of_slot, &slot_of_row, &rows}) EXPECT_SAME_AS_ON_CPU(*exact);
  for (const Both* close : {&y, &y_more, &dx, &dx_more, &drows}) EXPECT_AS_ON_CPU(*close, test::kBf16);
  for (const Both* close : {&dg, &stream, &stream_more}) EXPECT_AS_ON_CPU(*close, test::kF32);
}

TEST(MoePermuteCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 7, 700})
    for (const auto& [k, experts] : {std::pair<int64_t, int64_t>{1, 1}, {2, 5}, {8, 256}})
      for (int64_t columns : {1, 7, 264}) expect_as_on_cpu(tokens, k, experts, columns);
}

}  // namespace
}  // namespace hyscale
