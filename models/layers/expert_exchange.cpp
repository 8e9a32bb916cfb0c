#include "models/layers/expert_exchange.h"

#include <numeric>

#include "core/memory.h"

namespace hyscale {
namespace {

// Rows of each expert, on the host. A plan knows no routing and takes the load as even.
std::vector<int32_t> rows_of_experts(Context& ctx, const ExpertOrder& order, int64_t slots) {
  const size_t num_experts = static_cast<size_t>(order.offsets.size(0) - 1);
  std::vector<int32_t> offsets(num_experts + 1);
  if (ctx.device.is_meta()) {
    for (size_t e = 0; e <= num_experts; ++e) offsets[e] = static_cast<int32_t>(slots * static_cast<int64_t>(e) / static_cast<int64_t>(num_experts));
  } else {
    copy_bytes(offsets.data(), Device{}, order.offsets.raw(), ctx.device, order.offsets.bytes(), ctx.stream);
    synchronize(ctx.device, ctx.stream);
  }
  std::adjacent_difference(offsets.begin(), offsets.end(), offsets.begin());
  offsets.erase(offsets.begin());
  return offsets;
}

// What each rank sends for each expert of this one: [R, E / R].
std::vector<int32_t> exchange_counts(Context& ctx, const std::vector<int32_t>& counts) {
  const int64_t ranks = ctx.experts->size(), here = static_cast<int64_t>(counts.size()) / ranks;
  if (ctx.device.is_meta()) {
    std::vector<int32_t> out;
    for (int64_t r = 0; r < ranks; ++r) out.insert(out.end(), counts.begin() + ctx.experts->rank() * here, counts.begin() + (ctx.experts->rank() + 1) * here);
    return out;
  }
  const ArenaScope scope(*ctx.scratch);
  const Tensor mine = ctx.scratch->allocate(DType::i32, {ranks, here}), theirs = ctx.scratch->allocate(DType::i32, {ranks, here});
  copy_bytes(mine.raw(), ctx.device, counts.data(), Device{}, mine.bytes(), ctx.stream);
  const std::vector<int64_t> one(static_cast<size_t>(ranks), 1);
  ctx.experts->all_to_all(mine, one, theirs, one, ctx.stream);
  std::vector<int32_t> out(counts.size());
  copy_bytes(out.data(), Device{}, theirs.raw(), ctx.device, theirs.bytes(), ctx.stream);
  synchronize(ctx.device, ctx.stream);
  return out;
}

}  // namespace

ExpertExchange make_expert_exchange(Context& ctx, const ExpertOrder& order, int64_t slots) {
  const std::vector<int32_t> counts = rows_of_experts(ctx, order, slots), incoming = exchange_counts(ctx, counts);
  const size_t ranks = static_cast<size_t>(ctx.experts->size()), here = counts.size() / ranks;
  ExpertExchange x;
  std::vector<int32_t> experts;  // of the received rows
  for (size_t r = 0; r < ranks; ++r) {
    x.send_rows.push_back(std::accumulate(counts.begin() + static_cast<int64_t>(r * here), counts.begin() + static_cast<int64_t>((r + 1) * here), int64_t{0}));
    x.receive_rows.push_back(0);
    for (size_t e = 0; e < here; ++e) {
      const int32_t n = incoming[r * here + e];
      experts.insert(experts.end(), static_cast<size_t>(n), static_cast<int32_t>(e));
      x.receive_rows.back() += n;
    }
  }
  x.received = static_cast<int64_t>(experts.size());
  x.order = {ctx.saved->allocate(DType::i32, {static_cast<int64_t>(here) + 1}), ctx.saved->allocate(DType::i32, {x.received}),
             ctx.saved->allocate(DType::i32, {x.received})};
  const ArenaScope scope(*ctx.scratch);
  const Tensor ids = ctx.scratch->allocate(DType::i32, {x.received, 1});
  copy_bytes(ids.raw(), ctx.device, experts.data(), Device{}, ids.bytes(), ctx.stream);
  MakeExpertOrder make{ids, x.order, {}, ctx.stream};
  make.workspace = workspace(ctx, make_expert_order_workspace_bytes(make));
  make_expert_order(make);
  return x;
}

void dispatch_rows(Context& ctx, const ExpertExchange& x, const Tensor& rows, const Tensor& out) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor received = ctx.scratch->allocate(rows.dtype(), {x.received, rows.size(1)});
  ctx.experts->all_to_all(rows, x.send_rows, received, x.receive_rows, ctx.stream);
  gather_rows(out, received, x.order, ctx.stream);
}

void collect_rows(Context& ctx, const ExpertExchange& x, const Tensor& rows, const Tensor& out) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor returned = ctx.scratch->allocate(rows.dtype(), rows.shape());
  gather_rows_backward(returned, rows, x.order, false, ctx.stream);  // one row per slot: the order undone
  ctx.experts->all_to_all(returned, x.receive_rows, out, x.send_rows, ctx.stream);
}

}  // namespace hyscale
