#include "models/qwen/gated_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/dense_attention/dense_attention.h"
#include "kernels/rope/rope.h"
#include "models/layers/context_rows.h"
#include "models/layers/linear.h"
#include "models/qwen/zero_centred_norm.h"

namespace hyscale {
namespace {

// [T, H, D] as [T H, D]
Tensor head_rows(const Tensor& x) { return x.view({x.size(0) * x.size(1), x.size(2)}); }

}  // namespace

GatedAttention::GatedAttention(ParameterStore& store, const std::string& prefix, const GatedAttentionConfig& c)
    : config_(c),
      q_(store.add({.name = prefix + "q_proj.weight", .shape = {c.num_heads * 2 * c.head_dim, c.hidden_size}})),
      k_(store.add({.name = prefix + "k_proj.weight", .shape = {c.num_kv_heads * c.head_dim, c.hidden_size}})),
      v_(store.add({.name = prefix + "v_proj.weight", .shape = {c.num_kv_heads * c.head_dim, c.hidden_size}})),
      o_(store.add({.name = prefix + "o_proj.weight", .shape = {c.hidden_size, c.num_heads * c.head_dim}})),
      q_norm_(store.add(zero_centred_weight(prefix + "q_norm.weight", c.head_dim))),
      k_norm_(store.add(zero_centred_weight(prefix + "k_norm.weight", c.head_dim))),
      indexer_(store, prefix + "indexer.", c.indexer) {}

const CompressedEntries& GatedAttention::blocks(const Context& ctx) const {
  for (const CompressedEntries& e : ctx.sequence->compressed)
    if (e.ratio == config_.indexer.ratio) return e;
  throw InternalError(concat("the sequence has no blocks of ", config_.indexer.ratio, " tokens"));
}

Tensor GatedAttention::query_rows(const Tensor& q_gate) const { return head_rows(q_gate).slice(1, 0, config_.head_dim); }

void GatedAttention::rotate(Context& ctx, const Tensor& x, const Tensor& inv_freq, bool inverse) const {
  rope({x.slice(2, 0, config_.rope_dim), ctx.sequence->positions, inv_freq, false, inverse, ctx.stream});
}

float GatedAttention::scale() const { return 1 / std::sqrt(static_cast<float>(config_.head_dim)); }

template <typename Function>
void GatedAttention::for_each_run(const Context& ctx, Function function) const {
  if (!ctx.ring) return function(0, ctx.sequence->num_tokens(), 0);
  int64_t first = 0;
  for (const TokenRange& r : ctx.ring->layout().segments(ctx.ring->group().rank())) {
    function(first, first + r.size(), r.begin);
    first += r.size();
  }
}

AttendedBlocks GatedAttention::attended(Context& ctx, int slot, int64_t first, int64_t last, int64_t row) const {
  const CompressedEntries& b = blocks(ctx);
  const Selection chosen = ctx.selections->get(slot, ctx.stream);
  return {b.ratio, b.all_first_tokens, ctx.sequence->positions.slice(0, first, last), {chosen.indices.slice(0, first, last), chosen.counts.slice(0, first, last)}, row};
}

void GatedAttention::project(Context& ctx, const Tensor& x, const Tensor& inv_freq, Saved& s) {
  const GatedAttentionConfig& c = config_;
  const int64_t tokens = x.size(0);
  const Shape of_queries{tokens, c.num_heads, c.head_dim}, of_keys{tokens, c.num_kv_heads, c.head_dim};
  s.x = x;
  s.q_gate = ctx.saved->allocate(ctx.activation, {tokens, c.num_heads, 2 * c.head_dim});
  s.q_rstd = ctx.saved->allocate(DType::f32, {1, tokens * c.num_heads});
  s.k_rstd = ctx.saved->allocate(DType::f32, {1, tokens * c.num_kv_heads});
  for (Tensor* t : {&s.q, &s.o}) *t = ctx.saved->allocate(ctx.activation, of_queries);
  for (Tensor* t : {&s.k_raw, &s.k, &s.v}) *t = ctx.saved->allocate(ctx.activation, of_keys);
  s.lse = ctx.saved->allocate(DType::f32, {tokens, c.num_heads});

  linear(ctx, x, q_, s.q_gate.as_matrix());
  linear(ctx, x, k_, s.k_raw.as_matrix());
  linear(ctx, x, v_, s.v.as_matrix());
  group_norm(ctx, query_rows(s.q_gate), q_norm_, c.eps, head_rows(s.q), s.q_rstd);
  group_norm(ctx, head_rows(s.k_raw), k_norm_, c.eps, head_rows(s.k), s.k_rstd);
  rotate(ctx, s.q, inv_freq, false);
  rotate(ctx, s.k, inv_freq, false);
  const ContextRows rows = gather_context_rows(ctx, s.k.as_matrix(), s.v.as_matrix());  // side by side
  s.all_k = rows.kv.view({rows.kv.size(0), c.num_kv_heads, c.head_dim});
  s.all_v = rows.keys.view(s.all_k.shape());
}

void GatedAttention::output(Context& ctx, const Tensor& y, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor gated = ctx.scratch->allocate(ctx.activation, s.o.shape());
  gate({s.o, gates(s.q_gate), GateActivation::sigmoid, gated, ctx.stream});
  linear(ctx, gated.as_matrix(), o_, y);
}

void GatedAttention::forward(Context& ctx, Pass pass, int slot, const Tensor& x, const Tensor& y, const Tensor& inv_freq, Saved& s) {
  project(ctx, x, inv_freq, s);
  indexer_.forward(ctx, pass, slot, x, blocks(ctx), inv_freq, s.indexer);
  for_each_run(ctx, [&](int64_t first, int64_t last, int64_t row) {
    const ArenaScope inner(*ctx.scratch);
    BlockAttentionForward a{s.q.slice(0, first, last), s.all_k, s.all_v, attended(ctx, slot, first, last, row), scale(), s.o.slice(0, first, last), s.lse.slice(0, first, last),
                            {}, ctx.stream};
    a.workspace = workspace(ctx, block_attention_forward_workspace_bytes(a));
    block_attention_forward(a);
  });
  output(ctx, y, s);
}

void GatedAttention::warmup(Context& ctx, int slot, const Tensor& x, const Tensor& y, const Tensor& inv_freq) {
  Saved s;
  project(ctx, x, inv_freq, s);
  indexer_.warmup_forward(ctx, x, blocks(ctx), inv_freq, s.indexer);
  {
    const ArenaScope scope(*ctx.scratch);
    DenseAttention a{s.q, s.all_k, s.all_v, ctx.sequence->key_begin, ctx.sequence->key_end, scale(), s.o, s.lse, {}, ctx.stream};
    a.workspace = workspace(ctx, dense_attention_workspace_bytes(a));
    dense_attention(a);
  }
  indexer_.warmup_backward(ctx, slot, {s.q, s.all_k, s.lse, scale()}, blocks(ctx), inv_freq, s.indexer);
  output(ctx, y, s);
}

void GatedAttention::backward(Context& ctx, int slot, const Tensor& dy, const Tensor& inv_freq, const Tensor& dx, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const bool teach = ctx.scales.index > 0;
  const Tensor gated = ctx.scratch->allocate(ctx.activation, s.o.shape()), dout = ctx.scratch->allocate(ctx.activation, s.o.shape());
  const Tensor dq_gate = ctx.scratch->allocate(ctx.activation, s.q_gate.shape());
  const Tensor dk = ctx.scratch->allocate_zeroed(DType::f32, s.all_k.shape(), ctx.stream), dv = ctx.scratch->allocate_zeroed(DType::f32, s.all_v.shape(), ctx.stream);
  const Tensor block_mass = teach ? ctx.scratch->allocate(DType::f32, {dy.size(0), config_.indexer.k}) : Tensor();
  gate({s.o, gates(s.q_gate), GateActivation::sigmoid, gated, ctx.stream});
  {
    const ArenaScope inner(*ctx.scratch);
    const Tensor dy_narrow = narrowed(ctx, dy);
    linear_wgrad(ctx, dy_narrow, gated.as_matrix(), o_);
    linear_dgrad(ctx, dy_narrow, o_, dout.as_matrix());
  }
  gate_backward({s.o, gates(s.q_gate), GateActivation::sigmoid, dout, dout, gates(dq_gate), ctx.stream});
  const Tensor dq = gated;  // read for the last time above
  for_each_run(ctx, [&](int64_t first, int64_t last, int64_t row) {
    const ArenaScope inner(*ctx.scratch);
    const auto part = [&](const Tensor& t) { return t.defined() ? t.slice(0, first, last) : Tensor(); };
    BlockAttentionBackward a{part(s.q), s.all_k, s.all_v, attended(ctx, slot, first, last, row), scale(), part(s.o), part(s.lse), part(dout), part(dq), dk, dv,
                             part(block_mass), {}, ctx.stream, ctx.deterministic};
    a.workspace = workspace(ctx, block_attention_backward_workspace_bytes(a));
    block_attention_backward(a);
  });
  rotate(ctx, dq, inv_freq, true);
  group_norm_backward(ctx, query_rows(s.q_gate), q_norm_, s.q_rstd, head_rows(dq), query_rows(dq_gate));
  linear_wgrad(ctx, dq_gate.as_matrix(), s.x, q_);
  linear_dgrad(ctx, dq_gate.as_matrix(), q_, dx);
  const auto own = [&](const Tensor& all) { return narrowed(ctx, reduce_context_rows(ctx, all.as_matrix())).view(s.k.shape()); };
  backward_keys(ctx, own(dk), own(dv), inv_freq, dx, s);
  if (teach) indexer_.backward(ctx, slot, block_mass, blocks(ctx), inv_freq, s.indexer);
}

// dx is added to.
void GatedAttention::backward_keys(Context& ctx, const Tensor& dk, const Tensor& dv, const Tensor& inv_freq, const Tensor& dx, const Saved& s) {
  rotate(ctx, dk, inv_freq, true);
  group_norm_backward(ctx, head_rows(s.k_raw), k_norm_, s.k_rstd, head_rows(dk), head_rows(dk));
  linear_wgrad(ctx, dk.as_matrix(), s.x, k_);
  linear_dgrad(ctx, dk.as_matrix(), k_, dx, true);
  linear_wgrad(ctx, dv.as_matrix(), s.x, v_);
  linear_dgrad(ctx, dv.as_matrix(), v_, dx, true);
}

}  // namespace hyscale
