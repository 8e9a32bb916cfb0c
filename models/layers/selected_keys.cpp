#include "models/layers/selected_keys.h"

#include "kernels/flash_topk/flash_topk.h"
#include "kernels/index_loss/index_loss.h"
#include "kernels/quantize_rows/quantize_rows.h"

namespace hyscale {
namespace {

struct ScaledRows {
  Tensor rows, scales;
};
// x [..., D] as e4m3 with scales f32 [...], in scratch memory.
ScaledRows rounded_to_e4m3(Context& ctx, const Tensor& x) {
  const int64_t dims = x.size(-1);
  Shape outer = Shape(x.shape().dims().first(static_cast<size_t>(x.rank() - 1)));
  const ScaledRows r{ctx.scratch->allocate(DType::f8e4m3, x.shape()), ctx.scratch->allocate(DType::f32, outer)};
  quantize_rows({x.rank() == 2 ? x : x.view({outer.elements(), dims}), r.rows.view({outer.elements(), dims}), r.scales.view({outer.elements()}), ctx.stream});
  return r;
}

}  // namespace

ContextRows select_keys(Context& ctx, int slot, int64_t k, const KeyScorer& scorer, const Tensor& kv, const Tensor& keys, const RowShards* shards) {
  const ArenaScope scope(*ctx.scratch);
  const int64_t queries = scorer.q.size(0);
  Selection& selection = ctx.selections->open(slot, queries, k, ctx.stream);
  FlashTopKState state{k, ctx.scratch->allocate(DType::f32, {queries, k}), ctx.scratch->allocate(DType::i32, {queries, k}),
                       ctx.scratch->allocate(DType::i32, {queries}), ctx.selections->nan_query(slot)};
  flash_topk_begin(state, ctx.stream);
  const ScaledRows q = scorer.e4m3 ? rounded_to_e4m3(ctx, scorer.q) : ScaledRows{scorer.q, {}};
  const ContextRows rows = gather_context_rows(ctx, kv, keys, [&](int64_t first, const Tensor& arrived) {
    const ArenaScope update_scope(*ctx.scratch);
    const ScaledRows k = scorer.e4m3 ? rounded_to_e4m3(ctx, arrived) : ScaledRows{arrived, {}};
    FlashTopKUpdate update{q.rows, scorer.weights, k.rows, first, scorer.begin, scorer.end, {}, ctx.stream, q.scales, k.scales};
    update.workspace = workspace(ctx, flash_topk_update_workspace_bytes(state, update));
    flash_topk_update(state, update);
  }, shards);
  flash_topk_finish(state, selection, ctx.stream);
  ctx.selections->close(slot, rows.keys.size(0), ctx.stream);
  ctx.selections->count_selector_call();
  return rows;
}

void index_loss_of_selection(Context& ctx, int slot, const Tensor& q, const Tensor& weights, const Tensor& keys, const Tensor& head_sum, const Tensor& dq, const Tensor& dweights,
                             const Tensor& dkeys) {
  const ArenaScope scope(*ctx.scratch);
  IndexLoss l{q, weights, keys, ctx.selections->get(slot, ctx.stream), head_sum, static_cast<float>(ctx.scales.index), ctx.sums->index.slice(0, slot, slot + 1),
              dq, dweights, dkeys, ctx.deterministic, {}, ctx.stream};
  l.workspace = workspace(ctx, index_loss_workspace_bytes(l));
  index_loss(l);
}

}  // namespace hyscale
