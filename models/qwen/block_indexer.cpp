#include "models/qwen/block_indexer.h"

#include <cmath>

#include "kernels/block_pool/block_pool.h"
#include "kernels/dense_index_loss/dense_index_loss.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/rope/rope.h"
#include "models/layers/linear.h"
#include "models/layers/selected_keys.h"
#include "models/layers/token_reach.h"
#include "models/qwen/zero_centred_norm.h"

namespace hyscale {
namespace {

// [T, J, D] as [T J, D]
Tensor head_rows(const Tensor& x) { return x.view({x.size(0) * x.size(1), x.size(2)}); }
// [E, D] as [E, 1, D]
Tensor one_head(const Tensor& x) { return x.view({x.size(0), 1, x.size(1)}); }

}  // namespace

BlockIndexer::BlockIndexer(ParameterStore& store, const std::string& prefix, const BlockIndexerConfig& c)
    : config_(c),
      qk_(store.add({.name = prefix + "index_qk_proj.weight", .shape = {(c.num_heads + 1) * c.head_dim, c.hidden_size}, .group = ParameterGroup::indexer})),
      q_norm_(store.add(zero_centred_weight(prefix + "q_layernorm.weight", c.head_dim, ParameterGroup::indexer))),
      k_norm_(store.add(zero_centred_weight(prefix + "k_layernorm.weight", c.head_dim, ParameterGroup::indexer))) {}

float BlockIndexer::score_scale() const { return 1 / std::sqrt(static_cast<float>(config_.head_dim)); }

void BlockIndexer::rotate(Context& ctx, const Tensor& x, const Tensor& positions, const Tensor& inv_freq, bool inverse) const {
  rope({x.slice(2, 0, config_.rope_dim), positions, inv_freq, false, inverse, ctx.stream});
}

void BlockIndexer::project(Context& ctx, const Tensor& x, const CompressedEntries& blocks, const Tensor& inv_freq, Saved& s) {
  const int64_t tokens = x.size(0), heads = config_.num_heads, dims = config_.head_dim;
  s.x = x;
  for (Tensor* t : {&s.q_raw, &s.q}) *t = ctx.saved->allocate(ctx.activation, {tokens, heads, dims});
  for (Tensor* t : {&s.pooled, &s.keys}) *t = ctx.saved->allocate(ctx.activation, {blocks.own(), dims});
  s.q_rstd = ctx.saved->allocate(DType::f32, {1, tokens * heads});
  s.k_rstd = ctx.saved->allocate(DType::f32, {1, blocks.own()});
  scratch_gemm(ctx, x, query_rows(qk_.value), s.q_raw.as_matrix(), false, true);
  group_norm(ctx, head_rows(s.q_raw), q_norm_, config_.eps, head_rows(s.q), s.q_rstd);
  rotate(ctx, s.q, ctx.sequence->positions, inv_freq, false);
  scale(s.q, score_scale(), ctx.stream);  // relu lets a positive factor through: this scales the scores
  const ArenaScope scope(*ctx.scratch);
  const Tensor k_raw = ctx.scratch->allocate(ctx.activation, {tokens, dims});
  scratch_gemm(ctx, x, key_rows(qk_.value), k_raw, false, true);
  block_pool({reach_rows(ctx, k_raw, *ctx.scratch), blocks.first_token, blocks.ratio, s.pooled, ctx.stream});
  group_norm(ctx, s.pooled, k_norm_, config_.eps, s.keys, s.k_rstd);
  rotate(ctx, one_head(s.keys), blocks.positions, inv_freq, false);
}

void BlockIndexer::forward(Context& ctx, Pass pass, int slot, const Tensor& x, const CompressedEntries& blocks, const Tensor& inv_freq, Saved& s) {
  const bool replayed = ctx.selections->is_fixed(slot) || (pass == Pass::recompute && ctx.replay);
  // Keys are needed for scores, and again for those of the index loss.
  if (replayed && (pass == Pass::evaluate || ctx.scales.index <= 0)) return;
  project(ctx, x, blocks, inv_freq, s);
  s.all_keys = replayed ? gather_context_rows(ctx, {}, s.keys, {}, &blocks.shards).keys
                        : select_keys(ctx, slot, config_.k, {s.q, {}, blocks.begin, blocks.end}, {}, s.keys, &blocks.shards).keys;
}

void BlockIndexer::backward(Context& ctx, int slot, const Tensor& block_mass, const CompressedEntries& blocks, const Tensor& inv_freq, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dq = ctx.scratch->allocate(ctx.activation, s.q.shape()), dkeys = ctx.scratch->allocate_zeroed(DType::f32, s.all_keys.shape(), ctx.stream);
  index_loss_of_selection(ctx, slot, s.q, {}, s.all_keys, block_mass, dq, {}, dkeys);
  backward_projections(ctx, dq, dkeys, blocks, inv_freq, s);
}

void BlockIndexer::warmup_forward(Context& ctx, const Tensor& x, const CompressedEntries& blocks, const Tensor& inv_freq, Saved& s) {
  project(ctx, x, blocks, inv_freq, s);
  s.all_keys = gather_context_rows(ctx, {}, s.keys, {}, &blocks.shards).keys;
}

void BlockIndexer::warmup_backward(Context& ctx, int slot, const Teacher& main, const CompressedEntries& blocks, const Tensor& inv_freq, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dq = ctx.scratch->allocate(ctx.activation, s.q.shape()), dkeys = ctx.scratch->allocate_zeroed(DType::f32, s.all_keys.shape(), ctx.stream);
  {
    const ArenaScope inner(*ctx.scratch);
    DenseIndexLoss l{main.q, main.k, main.lse, main.scale, s.q, {}, s.all_keys, ctx.sequence->key_begin, ctx.sequence->key_end,
                     {blocks.ratio, blocks.all_first_tokens, blocks.begin, blocks.end}, static_cast<float>(ctx.scales.index), ctx.sums->index.slice(0, slot, slot + 1), dq, {}, dkeys,
                     {}, ctx.stream};
    l.workspace = workspace(ctx, dense_index_loss_workspace_bytes(l));
    dense_index_loss(l);
  }
  backward_projections(ctx, dq, dkeys, blocks, inv_freq, s);
}

void BlockIndexer::backward_projections(Context& ctx, const Tensor& dq, const Tensor& dkeys, const CompressedEntries& blocks, const Tensor& inv_freq, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  scale(dq, score_scale(), ctx.stream);
  rotate(ctx, dq, ctx.sequence->positions, inv_freq, true);
  group_norm_backward(ctx, head_rows(s.q_raw), q_norm_, s.q_rstd, head_rows(dq), head_rows(dq));
  scratch_gemm(ctx, dq.as_matrix(), s.x, query_rows(qk_.grad), true, false, 1, 1);
  const Tensor dpooled = narrowed(ctx, reduce_context_rows(ctx, dkeys, &blocks.shards));
  rotate(ctx, one_head(dpooled), blocks.positions, inv_freq, true);
  group_norm_backward(ctx, s.pooled, k_norm_, s.k_rstd, dpooled, dpooled);
  const Tensor dreach = ctx.scratch->allocate(ctx.activation, {ctx.sequence->reach.positions.size(0), config_.head_dim});
  block_pool_backward({dpooled, blocks.first_token, blocks.ratio, dreach, ctx.stream});
  const Tensor dk_raw = reaches_over(ctx) ? ctx.scratch->allocate_zeroed(ctx.activation, {s.x.size(0), config_.head_dim}, ctx.stream) : dreach;
  fold_reach(ctx, dreach, dk_raw);
  scratch_gemm(ctx, dk_raw, s.x, key_rows(qk_.grad), true, false, 1, 1);
}

}  // namespace hyscale
