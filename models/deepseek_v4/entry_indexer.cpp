#include "models/deepseek_v4/entry_indexer.h"

#include <cmath>

#include "kernels/elementwise/elementwise.h"
#include "kernels/rope/rope.h"
#include "models/layers/linear.h"
#include "models/layers/selected_keys.h"

namespace hyscale {

EntryIndexer::EntryIndexer(ParameterStore& store, const std::string& prefix, const EntryIndexerConfig& c)
    : config_(c),
      wq_b_(store.add({.name = prefix + "wq_b.weight", .shape = {c.num_heads * c.keys.dims, c.q_rank}, .group = ParameterGroup::indexer, .head_rows = {c.keys.dims}})),
      weights_proj_(store.add({.name = prefix + "weights_proj.weight", .shape = {c.num_heads, c.hidden_size}, .group = ParameterGroup::indexer, .fp32 = true})),
      compressor_(store, prefix + "compressor.", c.keys, ParameterGroup::indexer) {}

float EntryIndexer::weight_scale() const { return 1 / std::sqrt(static_cast<float>(config_.num_heads) * static_cast<float>(config_.keys.dims)); }

Tensor EntryIndexer::turned(const Tensor& q) const { return q.slice(2, config_.keys.dims - config_.keys.rope_dim, config_.keys.dims); }

void EntryIndexer::project(Context& ctx, const Tensor& u, const Tensor& reach, const Tensor& c_q, const CompressedEntries& entries, const Tensor& inv_freq, Saved& s) {
  const int64_t tokens = u.size(0), heads = config_.num_heads, dims = config_.keys.dims;
  s.u = u;
  s.c_q = c_q;
  s.q = ctx.saved->allocate(ctx.activation, {tokens, heads, dims});
  s.weights = ctx.saved->allocate(DType::f32, {tokens, heads});
  s.keys = ctx.saved->allocate(ctx.activation, {entries.own(), dims});
  linear(ctx, c_q, wq_b_, s.q.as_matrix());
  rope({turned(s.q), ctx.sequence->positions, inv_freq, true, false, ctx.stream});
  linear(ctx, u, weights_proj_, s.weights);
  scale(s.weights, weight_scale(), ctx.stream);
  compressor_.forward(ctx, reach, entries, inv_freq, s.keys, s.compressor);
}

Tensor EntryIndexer::select(Context& ctx, int slot, const Tensor& own_entries, const CompressedEntries& entries, Saved& s) {
  const ContextRows rows = select_keys(ctx, slot, config_.k, {s.q, s.weights, entries.begin, entries.end}, own_entries, s.keys, &entries.shards);
  s.all_keys = rows.keys;
  return rows.kv;
}

Tensor EntryIndexer::forward(Context& ctx, Pass pass, int slot, const Tensor& u, const Tensor& reach, const Tensor& c_q, const Tensor& own_entries,
                             const CompressedEntries& entries, const Tensor& inv_freq, Saved& s) {
  const bool replayed = ctx.selections->is_fixed(slot) || (pass == Pass::recompute && ctx.replay);
  // Keys are needed for scores, and again for those of the index loss.
  if (replayed && (pass == Pass::evaluate || ctx.scales.index <= 0)) return gather_context_rows(ctx, own_entries, {}, {}, &entries.shards).kv;
  project(ctx, u, reach, c_q, entries, inv_freq, s);
  if (!replayed) return select(ctx, slot, own_entries, entries, s);
  const ContextRows rows = gather_context_rows(ctx, own_entries, s.keys, {}, &entries.shards);
  s.all_keys = rows.keys;
  return rows.kv;
}

void EntryIndexer::backward(Context& ctx, int slot, const Tensor& head_sum, const CompressedEntries& entries, const Tensor& inv_freq, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dq = ctx.scratch->allocate(ctx.activation, s.q.shape()), dweights = ctx.scratch->allocate(DType::f32, s.weights.shape());
  const Tensor dkeys = ctx.scratch->allocate_zeroed(DType::f32, s.all_keys.shape(), ctx.stream);
  index_loss_of_selection(ctx, slot, s.q, s.weights, s.all_keys, head_sum, dq, dweights, dkeys);
  rope({turned(dq), ctx.sequence->positions, inv_freq, true, true, ctx.stream});
  linear_wgrad(ctx, dq.as_matrix(), s.c_q, wq_b_);
  linear_wgrad(ctx, dweights, s.u, weights_proj_, weight_scale());
  compressor_.backward(ctx, narrowed(ctx, reduce_context_rows(ctx, dkeys, &entries.shards)), entries, inv_freq, {}, s.compressor);
}

}  // namespace hyscale
