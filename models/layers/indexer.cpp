#include "models/layers/indexer.h"

#include <cmath>

#include "kernels/dense_index_loss/dense_index_loss.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rope/rope.h"
#include "models/layers/context_rows.h"
#include "models/layers/linear.h"
#include "models/layers/selected_keys.h"

namespace hyscale {
namespace {

constexpr float kKeyNormEps = 1e-6f;

Parameter indexer_parameter(const std::string& name, Shape shape, Init init = Init::normal, bool fp32 = false, std::vector<int64_t> head_rows = {}) {
  return {.name = name, .shape = shape, .group = ParameterGroup::indexer, .init = init, .fp32 = fp32, .weight_decay = init == Init::normal, .head_rows = std::move(head_rows)};
}

}  // namespace

Indexer::Indexer(ParameterStore& store, const std::string& prefix, const IndexerConfig& c)
    : config_(c),
      wq_b_(store.add(indexer_parameter(prefix + "wq_b.weight", {c.num_heads * c.head_dim, c.q_rank}, Init::normal, false, {c.head_dim}))),
      wk_(store.add(indexer_parameter(prefix + "wk.weight", {c.head_dim, c.hidden_size}))),
      k_norm_(store.add(indexer_parameter(prefix + "k_norm.weight", {c.head_dim}, Init::ones))),
      k_norm_bias_(store.add(indexer_parameter(prefix + "k_norm.bias", {c.head_dim}, Init::zeros))),
      weights_proj_(store.add(indexer_parameter(prefix + "weights_proj.weight", {c.num_heads, c.hidden_size}, Init::normal, true))) {}

float Indexer::weight_scale() const { return 1 / std::sqrt(static_cast<float>(config_.num_heads) * static_cast<float>(config_.head_dim)); }

void Indexer::project(Context& ctx, const Tensor& u, const Tensor& c_q, const Tensor& inv_freq, Saved& s) {
  const IndexerConfig& c = config_;
  const int64_t tokens = u.size(0);
  s.u = u;
  s.c_q = c_q;
  s.q = ctx.saved->allocate(ctx.activation, {tokens, c.num_heads, c.head_dim});
  s.weights = ctx.saved->allocate(DType::f32, {tokens, c.num_heads});
  s.k_raw = ctx.saved->allocate(ctx.activation, {tokens, c.head_dim});
  s.mean = ctx.saved->allocate(DType::f32, {tokens});
  s.rstd = ctx.saved->allocate(DType::f32, {tokens});
  s.k = ctx.saved->allocate(ctx.activation, {tokens, c.head_dim});
  linear(ctx, c_q, wq_b_, s.q.as_matrix());
  rope({s.q.slice(2, 0, c.rope_dim), ctx.sequence->positions, inv_freq, c.rope_interleaved, false, ctx.stream});
  linear(ctx, u, wk_, s.k_raw);
  layer_norm({s.k_raw, k_norm_.value, k_norm_bias_.value, kKeyNormEps, s.k, s.mean, s.rstd, ctx.stream});
  rope({s.k.view({tokens, 1, c.head_dim}).slice(2, 0, c.rope_dim), ctx.sequence->positions, inv_freq, c.rope_interleaved, false, ctx.stream});
  linear(ctx, u, weights_proj_, s.weights);
  scale(s.weights, weight_scale(), ctx.stream);
}

Tensor Indexer::select(Context& ctx, int slot, const Tensor& kv, Saved& s) {
  const ContextRows rows = select_keys(ctx, slot, config_.k, {s.q, s.weights, ctx.sequence->key_begin, ctx.sequence->key_end, config_.e4m3}, kv, s.k);
  s.all_keys = rows.keys;
  return rows.kv;
}

Tensor Indexer::forward(Context& ctx, Pass pass, int slot, const Tensor& u, const Tensor& c_q, const Tensor& kv, const Tensor& inv_freq, Saved& s) {
  const bool replayed = ctx.selections->is_fixed(slot) || (pass == Pass::recompute && ctx.replay);
  // Index keys are needed for scores, and again for those of the index loss.
  const bool keys_needed = !replayed || (pass != Pass::evaluate && ctx.scales.index > 0);
  if (!keys_needed) return gather_context_rows(ctx, kv, {}).kv;
  project(ctx, u, c_q, inv_freq, s);
  if (!replayed) return select(ctx, slot, kv, s);
  const ContextRows rows = gather_context_rows(ctx, kv, s.k);
  s.all_keys = rows.keys;
  return rows.kv;
}

void Indexer::backward_projections(Context& ctx, const Tensor& dq, const Tensor& dweights, const Tensor& dk, const Tensor& inv_freq, const Saved& s) {
  const IndexerConfig& c = config_;
  const int64_t tokens = s.q.size(0);
  rope({dq.slice(2, 0, c.rope_dim), ctx.sequence->positions, inv_freq, c.rope_interleaved, true, ctx.stream});
  linear_wgrad(ctx, dq.as_matrix(), s.c_q, wq_b_);
  linear_wgrad(ctx, dweights, s.u, weights_proj_, weight_scale());
  rope({dk.view({tokens, 1, c.head_dim}).slice(2, 0, c.rope_dim), ctx.sequence->positions, inv_freq, c.rope_interleaved, true, ctx.stream});
  const Tensor dk_raw = ctx.scratch->allocate(ctx.activation, s.k_raw.shape());
  LayerNormBackward n{s.k_raw, k_norm_.value, s.mean, s.rstd, dk, dk_raw, k_norm_.grad, k_norm_bias_.grad, {}, ctx.stream};
  n.workspace = workspace(ctx, layer_norm_backward_workspace_bytes(n));
  layer_norm_backward(n);
  linear_wgrad(ctx, dk_raw, s.u, wk_);
}

void Indexer::backward(Context& ctx, int slot, const Tensor& head_sum, const Tensor& inv_freq, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dq = ctx.scratch->allocate(ctx.activation, s.q.shape()), dweights = ctx.scratch->allocate(DType::f32, s.weights.shape());
  const Tensor dk = ctx.scratch->allocate_zeroed(DType::f32, s.all_keys.shape(), ctx.stream);
  index_loss_of_selection(ctx, slot, s.q, s.weights, s.all_keys, head_sum, dq, dweights, dk);
  backward_projections(ctx, dq, dweights, reduce_context_rows(ctx, dk), inv_freq, s);
}

Tensor Indexer::warmup_forward(Context& ctx, const Tensor& u, const Tensor& c_q, const Tensor& kv, const Tensor& inv_freq, Saved& s) {
  project(ctx, u, c_q, inv_freq, s);
  const ContextRows rows = gather_context_rows(ctx, kv, s.k);
  s.all_keys = rows.keys;
  return rows.kv;
}

void Indexer::warmup_backward(Context& ctx, int slot, const Tensor& inv_freq, const Tensor& main_q, const Mla::Dense& dense, float main_scale, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dq = ctx.scratch->allocate(ctx.activation, s.q.shape()), dweights = ctx.scratch->allocate(DType::f32, s.weights.shape());
  const Tensor dk = ctx.scratch->allocate_zeroed(DType::f32, s.all_keys.shape(), ctx.stream);
  {
    const ArenaScope inner(*ctx.scratch);
    DenseIndexLoss l{main_q, dense.keys, dense.lse, main_scale, s.q, s.weights, s.all_keys, ctx.sequence->key_begin, ctx.sequence->key_end, {},
                     static_cast<float>(ctx.scales.index), ctx.sums->index.slice(0, slot, slot + 1), dq, dweights, dk, {}, ctx.stream};
    l.workspace = workspace(ctx, dense_index_loss_workspace_bytes(l));
    dense_index_loss(l);
  }
  backward_projections(ctx, dq, dweights, reduce_context_rows(ctx, dk), inv_freq, s);
}

}  // namespace hyscale
