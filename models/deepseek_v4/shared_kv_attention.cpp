#include "models/deepseek_v4/shared_kv_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/attended_rows/attended_rows.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/sparse_attention/sparse_attention.h"
#include "models/layers/context_rows.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/selection_health.h"
#include "models/layers/token_reach.h"

namespace hyscale {
namespace {

constexpr int64_t kListBytes = int64_t{64} << 20;  // of attended rows at a time

CompressorConfig compressor_config(const V4Config& c, int64_t dims, int64_t ratio) { return {c.hidden_size, dims, c.rope_dim, ratio, ratio == 4, c.norm_eps}; }

// Heads in a group lie side by side: [T, H, D] -> [G, T, H/G D], for a product per group.
Tensor by_group(const Tensor& x, int64_t groups) { return heads_first(x.view({x.size(0), groups, x.size(1) * x.size(2) / groups})); }

}  // namespace

SharedKvAttention::SharedKvAttention(ParameterStore& store, const std::string& prefix, const V4Config& c, Compression compression, int64_t ratio)
    : heads_(c.num_heads), dims_(c.head_dim), rope_dim_(c.rope_dim), groups_(c.groups), group_rank_(c.group_rank), window_(c.window), k_(c.index_k), ratio_(ratio),
      eps_(c.norm_eps),
      scale_(1 / std::sqrt(static_cast<float>(c.head_dim))),
      compression_(compression),
      wq_a_(store.add({.name = prefix + "wq_a.weight", .shape = {c.q_rank, c.hidden_size}})),
      q_norm_(store.add(norm_weight(prefix + "q_norm.weight", c.q_rank))),
      wq_b_(store.add({.name = prefix + "wq_b.weight", .shape = {c.num_heads * c.head_dim, c.q_rank}, .head_rows = {c.head_dim}})),
      wkv_(store.add({.name = prefix + "wkv.weight", .shape = {c.head_dim, c.hidden_size}})),
      kv_norm_(store.add(norm_weight(prefix + "norm.weight", c.head_dim))),
      sink_(store.add({.name = prefix + "attn_sink", .shape = {c.num_heads}, .init = Init::zeros, .fp32 = true, .weight_decay = false})),
      wo_a_(store.add({.name = prefix + "wo_a.weight", .shape = {c.groups * c.group_rank, c.num_heads / c.groups * c.head_dim}, .head_rows = {c.group_rank}})),
      wo_b_(store.add({.name = prefix + "wo_b.weight", .shape = {c.hidden_size, c.groups * c.group_rank}})) {
  if (compression == Compression::none) return;
  compressor_.emplace(store, prefix + "compressor.", compressor_config(c, c.head_dim, ratio), ParameterGroup::trunk);
  if (compression == Compression::selected)
    indexer_.emplace(store, prefix + "indexer.",
                     EntryIndexerConfig{c.hidden_size, c.q_rank, c.index_heads, c.index_k, compressor_config(c, c.index_dim, ratio)});
}

const CompressedEntries& SharedKvAttention::entries(const Context& ctx) const {
  for (const CompressedEntries& e : ctx.sequence->compressed)
    if (e.ratio == ratio_) return e;
  throw InternalError(concat("the sequence has no entries of ratio ", ratio_));
}

int64_t SharedKvAttention::num_entries(const Context& ctx) const { return compressor_ ? entries(ctx).all() : 0; }

Tensor SharedKvAttention::turned(const Tensor& rows) const {
  if (rows.rank() == 3) return rows.slice(2, dims_ - rope_dim_, dims_);
  const Tensor part = rows.slice(1, dims_ - rope_dim_, dims_);
  return Tensor(part.raw(), part.dtype(), part.device(), {part.size(0), 1, rope_dim_}, {part.stride(0), rope_dim_, 1});
}

void SharedKvAttention::project(Context& ctx, const Tensor& u, const Tensor& inv_freq, Saved& s) {
  const int64_t tokens = u.size(0);
  s.u = u;
  s.reach = reach_rows(ctx, u);
  const int64_t reach = s.reach.size(0);
  s.q_latent = ctx.saved->allocate(ctx.activation, {tokens, wq_a_.shape[0]});
  s.q_rstd = ctx.saved->allocate(DType::f32, {tokens});
  s.c_q = ctx.saved->allocate(ctx.activation, s.q_latent.shape());
  s.q_raw = ctx.saved->allocate(ctx.activation, {tokens, heads_, dims_});
  s.q_head_rstd = ctx.saved->allocate(DType::f32, {tokens * heads_});
  s.q = ctx.saved->allocate(ctx.activation, s.q_raw.shape());
  s.kv_raw = ctx.saved->allocate(ctx.activation, {reach, dims_});
  s.kv_rstd = ctx.saved->allocate(DType::f32, {reach});
  s.rows = ctx.saved->allocate(ctx.activation, {num_entries(ctx) + reach, dims_});

  linear(ctx, u, wq_a_, s.q_latent);
  rms_norm({s.q_latent, q_norm_.value, eps_, s.c_q, s.q_rstd, ctx.stream});
  linear(ctx, s.c_q, wq_b_, s.q_raw.as_matrix());
  const Shape head_rows{tokens * heads_, dims_};
  rms_norm({s.q_raw.view(head_rows), {}, eps_, s.q.view(head_rows), s.q_head_rstd, ctx.stream});
  rope({turned(s.q), ctx.sequence->positions, inv_freq, true, false, ctx.stream});
  linear(ctx, s.reach, wkv_, s.kv_raw);
  s.kv = s.rows.slice(0, num_entries(ctx), s.rows.size(0));
  rms_norm({s.kv_raw, kv_norm_.value, eps_, s.kv, s.kv_rstd, ctx.stream});
  rope({turned(s.kv), ctx.sequence->reach.positions, inv_freq, true, false, ctx.stream});
}

// The entries of the whole sequence before the tokens; on the way the indexer selects.
void SharedKvAttention::join_rows(Context& ctx, Pass pass, int slot, const Tensor& inv_freq, Saved& s) {
  if (!compressor_) return;
  const CompressedEntries& e = entries(ctx);
  const Tensor all = s.rows.slice(0, 0, e.all());
  s.own_entries = ctx.ring ? ctx.saved->allocate(ctx.activation, {e.own(), dims_}) : all;
  compressor_->forward(ctx, s.reach, e, inv_freq, s.own_entries, s.compressor);
  const Tensor gathered = indexer_ ? indexer_->forward(ctx, pass, slot, s.u, s.reach, s.c_q, s.own_entries, e, inv_freq, s.indexer)
                                   : gather_context_rows(ctx, s.own_entries, {}, {}, &e.shards).kv;
  if (ctx.ring) copy(all, gathered, ctx.stream);
}

int64_t SharedKvAttention::most_rows(const Context& ctx) const {
  return window_ + (compression_ == Compression::selected ? k_ : compression_ == Compression::all ? entries(ctx).most_visible : 0);
}

template <typename Function>
void SharedKvAttention::for_each_run(Context& ctx, int slot, Function function) const {
  const PackedSequence& q = *ctx.sequence;
  const int64_t tokens = q.num_tokens(), width = most_rows(ctx), run = std::max<int64_t>(1, kListBytes / (4 * width));
  const Selection chosen = indexer_ ? ctx.selections->get(slot, ctx.stream) : Selection{};
  for (int64_t first = 0; first < tokens; first += run) {
    const ArenaScope scope(*ctx.scratch);
    const int64_t last = std::min(first + run, tokens);
    const auto part = [&](const Tensor& t) { return t.defined() ? t.slice(0, first, last) : Tensor(); };
    AttendedRows a{{part(chosen.indices), part(chosen.counts)}, {}, {}, part(q.reach.begin), part(q.reach.end), window_, num_entries(ctx),
                   {ctx.scratch->allocate(DType::i32, {last - first, width}), ctx.scratch->allocate(DType::i32, {last - first})}, ctx.stream};
    if (compression_ == Compression::all) a.entry_begin = part(entries(ctx).begin), a.entry_end = part(entries(ctx).end);
    attended_rows(a);
    function(first, last, a.rows);
  }
}

Tensor SharedKvAttention::unturned_output(Context& ctx, const Tensor& inv_freq, const Saved& s) const {
  const Tensor o = ctx.scratch->allocate(ctx.activation, s.o.shape());
  copy(o, s.o, ctx.stream);
  rope({turned(o), ctx.sequence->positions, inv_freq, true, true, ctx.stream});
  return o;
}

void SharedKvAttention::forward(Context& ctx, Pass pass, int slot, const Tensor& u, const Tensor& y, const Tensor& inv_freq, Saved& s) {
  project(ctx, u, inv_freq, s);
  join_rows(ctx, pass, slot, inv_freq, s);
  if (ctx.health && indexer_ && pass == Pass::forward) {
    const CompressedEntries& e = entries(ctx);
    ctx.health->observe(ctx, {slot, k_, s.q, s.rows.slice(0, 0, e.all()), dims_, scale_, s.indexer.q, s.indexer.weights, s.indexer.all_keys, e.begin, e.end});
  }
  const int64_t tokens = u.size(0);
  s.o = ctx.saved->allocate(ctx.activation, s.q.shape());
  s.lse = ctx.saved->allocate(DType::f32, {tokens, heads_});
  s.grouped = ctx.saved->allocate(ctx.activation, {tokens, groups_, group_rank_});
  for_each_run(ctx, slot, [&](int64_t first, int64_t last, const Selection& rows) {
    SparseAttentionForward a{s.q.slice(0, first, last), s.rows, rows, scale_, s.o.slice(0, first, last), s.lse.slice(0, first, last), {}, ctx.stream, sink_.value};
    a.workspace = workspace(ctx, sparse_attention_forward_workspace_bytes(a));
    sparse_attention_forward(a);
  });
  const ArenaScope scope(*ctx.scratch);
  const Tensor o = unturned_output(ctx, inv_freq, s), weights = wo_a_.value.view({groups_, group_rank_, wo_a_.shape[1]});
  scratch_gemm(ctx, by_group(o, groups_), weights, heads_first(s.grouped), false, true);
  linear(ctx, s.grouped.as_matrix(), wo_b_, y);
}

void SharedKvAttention::backward(Context& ctx, int slot, const Tensor& dy, const Tensor& du, const Tensor& inv_freq, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const bool teach = indexer_ && ctx.scales.index > 0;
  const int64_t tokens = dy.size(0);
  const Tensor head_sum = teach ? ctx.scratch->allocate(DType::f32, {tokens, k_}) : Tensor();
  const Tensor dq = ctx.scratch->allocate(ctx.activation, s.q.shape());
  const Tensor drows = ctx.scratch->allocate_zeroed(DType::f32, s.rows.shape(), ctx.stream);
  {
    const ArenaScope inner(*ctx.scratch);
    const Tensor dgrouped = ctx.scratch->allocate(ctx.activation, s.grouped.shape()), dout = ctx.scratch->allocate(ctx.activation, s.o.shape());
    const Shape by_groups{groups_, group_rank_, wo_a_.shape[1]};
    const Tensor dy_narrow = narrowed(ctx, dy);
    linear_wgrad(ctx, dy_narrow, s.grouped.as_matrix(), wo_b_);
    linear_dgrad(ctx, dy_narrow, wo_b_, dgrouped.as_matrix());
    {
      const ArenaScope output(*ctx.scratch);
      scratch_gemm(ctx, heads_first(dgrouped), by_group(unturned_output(ctx, inv_freq, s), groups_), wo_a_.grad.view(by_groups), true, false, 1, 1);
    }
    scratch_gemm(ctx, heads_first(dgrouped), wo_a_.value.view(by_groups), by_group(dout, groups_), false, false);
    rope({turned(dout), ctx.sequence->positions, inv_freq, true, false, ctx.stream});
    for_each_run(ctx, slot, [&](int64_t first, int64_t last, const Selection& rows) {
      const Tensor sums = teach ? ctx.scratch->allocate(DType::f32, rows.indices.shape()) : Tensor();
      SparseAttentionBackward a{s.q.slice(0, first, last), s.rows, rows, scale_, s.o.slice(0, first, last), s.lse.slice(0, first, last), dout.slice(0, first, last),
                                dq.slice(0, first, last), drows, sums, ctx.deterministic, {}, ctx.stream, sink_.value, sink_.grad};
      a.workspace = workspace(ctx, sparse_attention_backward_workspace_bytes(a));
      sparse_attention_backward(a);
      if (teach) cast(head_sum.slice(0, first, last), sums.slice(1, 0, k_), ctx.stream);
    });
  }
  backward_projections(ctx, dq, drows, inv_freq, du, s);
  if (teach) indexer_->backward(ctx, slot, head_sum, entries(ctx), inv_freq, s.indexer);
}

void SharedKvAttention::backward_projections(Context& ctx, const Tensor& dq, const Tensor& drows, const Tensor& inv_freq, const Tensor& du, const Saved& s) {
  const int64_t tokens = dq.size(0), first_token = num_entries(ctx), reach = s.reach.size(0);
  const Shape head_rows{tokens * heads_, dims_};
  const Tensor dc_q = ctx.scratch->allocate(ctx.activation, s.c_q.shape());
  rope({turned(dq), ctx.sequence->positions, inv_freq, true, true, ctx.stream});
  rms_norm_backward(ctx, s.q_raw.view(head_rows), Parameter{}, s.q_head_rstd, dq.view(head_rows), dq.view(head_rows));
  linear_wgrad(ctx, dq.as_matrix(), s.c_q, wq_b_);
  linear_dgrad(ctx, dq.as_matrix(), wq_b_, dc_q);
  rms_norm_backward(ctx, s.q_latent, q_norm_, s.q_rstd, dc_q, dc_q);
  linear_wgrad(ctx, dc_q, s.u, wq_a_);
  linear_dgrad(ctx, dc_q, wq_a_, du);

  // What goes through tokens' rows and entries belongs to the reach, of which du is a part.
  const bool over = reaches_over(ctx);
  const Tensor dreach = over ? ctx.scratch->allocate(ctx.activation, s.reach.shape()) : du;
  const Tensor dkv = narrowed(ctx, drows.slice(0, first_token, first_token + reach));
  rope({turned(dkv), ctx.sequence->reach.positions, inv_freq, true, true, ctx.stream});
  rms_norm_backward(ctx, s.kv_raw, kv_norm_, s.kv_rstd, dkv, dkv);
  linear_wgrad(ctx, dkv, s.reach, wkv_);
  linear_dgrad(ctx, dkv, wkv_, dreach, !over);
  if (compressor_) {
    const CompressedEntries& e = entries(ctx);
    const Tensor dentries = reduce_context_rows(ctx, drows.slice(0, 0, first_token), &e.shards);
    compressor_->backward(ctx, narrowed(ctx, dentries), e, inv_freq, dreach, s.compressor);
  }
  fold_reach(ctx, dreach, du);
}

}  // namespace hyscale
