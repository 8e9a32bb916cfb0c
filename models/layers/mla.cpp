#include "models/layers/mla.h"

#include "kernels/dense_attention/dense_attention.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/sparse_attention/sparse_attention.h"
#include "models/layers/context_rows.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"

namespace hyscale {
namespace {

// [T, D] -> [T, 1, D], for rope on a row that all heads share.
Tensor one_head(const Tensor& x) { return Tensor(x.raw(), x.dtype(), x.device(), {x.size(0), 1, x.size(1)}, {x.stride(0), x.size(1), x.stride(1)}); }

}  // namespace

Mla::Mla(ParameterStore& store, const std::string& prefix, const MlaConfig& c)
    : config_(c),
      q_a_(store.add({.name = prefix + "q_a_proj.weight", .shape = {c.q_rank, c.hidden_size}})),
      q_norm_(store.add(norm_weight(prefix + "q_a_layernorm.weight", c.q_rank))),
      q_b_(store.add({.name = prefix + "q_b_proj.weight", .shape = {c.num_heads * (c.nope_dim + c.rope_dim), c.q_rank}, .head_rows = {c.nope_dim + c.rope_dim}})),
      kv_a_(store.add({.name = prefix + "kv_a_proj_with_mqa.weight", .shape = {c.kv_rank + c.rope_dim, c.hidden_size}})),
      kv_norm_(store.add(norm_weight(prefix + "kv_a_layernorm.weight", c.kv_rank))),
      kv_b_(store.add({.name = prefix + "kv_b_proj.weight", .shape = {c.num_heads * (c.nope_dim + c.value_dim), c.kv_rank}, .head_rows = {c.nope_dim, c.value_dim}})),
      o_(store.add({.name = prefix + "o_proj.weight", .shape = {c.hidden_size, c.num_heads * c.value_dim}})) {}

Tensor Mla::up_keys(const Tensor& kv_b) const {
  return kv_b.view({config_.num_heads, config_.nope_dim + config_.value_dim, config_.kv_rank}).slice(1, 0, config_.nope_dim);
}
Tensor Mla::up_values(const Tensor& kv_b) const {
  const int64_t rows = config_.nope_dim + config_.value_dim;
  return kv_b.view({config_.num_heads, rows, config_.kv_rank}).slice(1, config_.nope_dim, rows);
}

void Mla::rotate(Context& ctx, const Tensor& x, const Tensor& inv_freq, bool inverse) const {
  rope({x, ctx.sequence->positions, inv_freq, config_.rope_interleaved, inverse, ctx.stream});
}

void Mla::project(Context& ctx, const Tensor& u, const Tensor& inv_freq, Saved& s) {
  const MlaConfig& c = config_;
  const int64_t tokens = u.size(0), width = c.kv_rank + c.rope_dim;
  s.u = u;
  s.q_raw = ctx.saved->allocate(ctx.residual(), {tokens, c.q_rank});
  s.q_rstd = ctx.saved->allocate(DType::f32, {tokens});
  s.c_q = ctx.saved->allocate(ctx.activation, {tokens, c.q_rank});
  s.kv_raw = ctx.saved->allocate(ctx.residual(), {tokens, width});
  s.kv_rstd = ctx.saved->allocate(DType::f32, {tokens});
  s.kv = ctx.saved->allocate(ctx.activation, {tokens, width});
  s.q = ctx.saved->allocate(ctx.activation, {tokens, c.num_heads, c.nope_dim + c.rope_dim});
  s.q_absorbed = ctx.saved->allocate(ctx.activation, {tokens, c.num_heads, width});

  linear(ctx, u, q_a_, s.q_raw);
  rms_norm({s.q_raw, q_norm_.value, c.latent_eps, s.c_q, s.q_rstd, ctx.stream});
  linear(ctx, s.c_q, q_b_, s.q.as_matrix());
  linear(ctx, u, kv_a_, s.kv_raw);
  rms_norm({s.kv_raw.slice(1, 0, c.kv_rank), kv_norm_.value, c.latent_eps, s.kv.slice(1, 0, c.kv_rank), s.kv_rstd, ctx.stream});
  cast(s.kv.slice(1, c.kv_rank, width), s.kv_raw.slice(1, c.kv_rank, width), ctx.stream);
  rotate(ctx, one_head(s.kv.slice(1, c.kv_rank, width)), inv_freq, false);

  scratch_gemm(ctx, heads_first(s.q.slice(2, 0, c.nope_dim)), up_keys(kv_b_.value), heads_first(s.q_absorbed.slice(2, 0, c.kv_rank)), false, false);
  cast(s.q_absorbed.slice(2, c.kv_rank, width), s.q.slice(2, c.nope_dim, c.nope_dim + c.rope_dim), ctx.stream);
  rotate(ctx, s.q_absorbed.slice(2, c.kv_rank, width), inv_freq, false);
}

void Mla::attend(Context& ctx, const Tensor& kv, const Selection& selection, const Tensor& y, Saved& s) {
  const MlaConfig& c = config_;
  s.all_kv = kv;
  const int64_t tokens = s.q.size(0);
  s.o_latent = ctx.saved->allocate(ctx.activation, {tokens, c.num_heads, c.kv_rank});
  s.lse = ctx.saved->allocate(DType::f32, {tokens, c.num_heads});
  s.o = ctx.saved->allocate(ctx.activation, {tokens, c.num_heads, c.value_dim});
  {
    const ArenaScope scope(*ctx.scratch);
    SparseAttentionForward a{s.q_absorbed, kv, selection, c.scale, s.o_latent, s.lse, {}, ctx.stream};
    a.workspace = workspace(ctx, sparse_attention_forward_workspace_bytes(a));
    sparse_attention_forward(a);
  }
  scratch_gemm(ctx, heads_first(s.o_latent), up_values(kv_b_.value), heads_first(s.o), false, true);
  linear(ctx, s.o.as_matrix(), o_, y);
}

void Mla::backward(Context& ctx, const Tensor& dy, const Selection& selection, const Tensor& inv_freq, const Tensor& head_sum, const Tensor& du,
                   const Saved& s) {
  const MlaConfig& c = config_;
  const ArenaScope scope(*ctx.scratch);
  const int64_t width = c.kv_rank + c.rope_dim, qk_dim = c.nope_dim + c.rope_dim;
  const Tensor dq_absorbed = ctx.scratch->allocate(ctx.activation, s.q_absorbed.shape());
  const Tensor dkv = ctx.scratch->allocate_zeroed(DType::f32, s.all_kv.shape(), ctx.stream);
  {
    const ArenaScope inner(*ctx.scratch);
    const Tensor do_values = ctx.scratch->allocate(ctx.activation, s.o.shape());
    const Tensor dy_narrow = narrowed(ctx, dy);
    linear_wgrad(ctx, dy_narrow, s.o.as_matrix(), o_);
    linear_dgrad(ctx, dy_narrow, o_, do_values.as_matrix());
    scratch_gemm(ctx, heads_first(do_values), heads_first(s.o_latent), up_values(kv_b_.grad), true, false, 1, 1);
    const Tensor do_latent = ctx.scratch->allocate(ctx.activation, s.o_latent.shape());
    scratch_gemm(ctx, heads_first(do_values), up_values(kv_b_.value), heads_first(do_latent), false, false);
    SparseAttentionBackward a{s.q_absorbed, s.all_kv, selection, c.scale, s.o_latent, s.lse, do_latent, dq_absorbed, dkv, head_sum, ctx.deterministic, {},
                              ctx.stream};
    a.workspace = workspace(ctx, sparse_attention_backward_workspace_bytes(a));
    sparse_attention_backward(a);
  }
  const Tensor dq = ctx.scratch->allocate(ctx.activation, s.q.shape());
  const Tensor dq_latent = dq_absorbed.slice(2, 0, c.kv_rank);
  scratch_gemm(ctx, heads_first(s.q.slice(2, 0, c.nope_dim)), heads_first(dq_latent), up_keys(kv_b_.grad), true, false, 1, 1);
  scratch_gemm(ctx, heads_first(dq_latent), up_keys(kv_b_.value), heads_first(dq.slice(2, 0, c.nope_dim)), false, true);
  cast(dq.slice(2, c.nope_dim, qk_dim), dq_absorbed.slice(2, c.kv_rank, width), ctx.stream);
  rotate(ctx, dq.slice(2, c.nope_dim, qk_dim), inv_freq, true);
  backward_latents(ctx, dq, reduce_context_rows(ctx, dkv), inv_freq, du, s);
}

void Mla::backward_latents(Context& ctx, const Tensor& dq, const Tensor& dkv, const Tensor& inv_freq, const Tensor& du, const Saved& s) {
  const MlaConfig& c = config_;
  const int64_t width = c.kv_rank + c.rope_dim;
  const Tensor dq_flat = dq.as_matrix(), dc_q = ctx.scratch->allocate(ctx.activation, s.c_q.shape());
  linear_wgrad(ctx, dq_flat, s.c_q, q_b_);
  linear_dgrad(ctx, dq_flat, q_b_, dc_q);
  rms_norm_backward(ctx, s.q_raw, q_norm_, s.q_rstd, dc_q, dc_q);
  linear_wgrad(ctx, dc_q, s.u, q_a_);
  linear_dgrad(ctx, dc_q, q_a_, du);

  const Tensor dkv_raw = narrowed(ctx, dkv);
  rotate(ctx, one_head(dkv_raw.slice(1, c.kv_rank, width)), inv_freq, true);
  const Tensor dlatent = dkv_raw.slice(1, 0, c.kv_rank);
  rms_norm_backward(ctx, s.kv_raw.slice(1, 0, c.kv_rank), kv_norm_, s.kv_rstd, dlatent, dlatent);
  linear_wgrad(ctx, dkv_raw, s.u, kv_a_);
  linear_dgrad(ctx, dkv_raw, kv_a_, du, true);
}

void Mla::attend_dense(Context& ctx, const Tensor& kv, const Tensor& inv_freq, const Tensor& y, Saved& s, Dense& dense) {
  const MlaConfig& c = config_;
  const int64_t tokens = s.q.size(0), keys = kv.size(0), width = c.kv_rank + c.rope_dim, qk_dim = c.nope_dim + c.rope_dim;
  dense.keys = ctx.saved->allocate(ctx.activation, {keys, c.num_heads, qk_dim});
  dense.lse = ctx.saved->allocate(DType::f32, {tokens, c.num_heads});
  const ArenaScope scope(*ctx.scratch);
  const Tensor values = ctx.scratch->allocate(ctx.activation, {keys, c.num_heads, c.value_dim});
  const Tensor out = ctx.scratch->allocate(ctx.activation, {tokens, c.num_heads, c.value_dim});
  const Tensor c_kv = kv.slice(1, 0, c.kv_rank);
  const Tensor c_kv_of_heads(c_kv.raw(), c_kv.dtype(), c_kv.device(), {c.num_heads, keys, c.kv_rank}, {0, c_kv.stride(0), 1});
  scratch_gemm(ctx, c_kv_of_heads, up_keys(kv_b_.value), heads_first(dense.keys.slice(2, 0, c.nope_dim)), false, true);
  scratch_gemm(ctx, c_kv_of_heads, up_values(kv_b_.value), heads_first(values), false, true);
  for (int64_t h = 0; h < c.num_heads; ++h) cast(dense.keys.select(1, h).slice(1, c.nope_dim, qk_dim), kv.slice(1, c.kv_rank, width), ctx.stream);
  rotate(ctx, s.q.slice(2, c.nope_dim, qk_dim), inv_freq, false);
  DenseAttention a{s.q, dense.keys, values, ctx.sequence->key_begin, ctx.sequence->key_end, c.scale, out, dense.lse, {}, ctx.stream};
  a.workspace = workspace(ctx, dense_attention_workspace_bytes(a));
  dense_attention(a);
  linear(ctx, out.as_matrix(), o_, y);
}

}  // namespace hyscale
