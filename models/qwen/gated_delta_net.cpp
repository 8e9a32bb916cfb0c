#include "models/qwen/gated_delta_net.h"

#include <cmath>

#include "kernels/gated_delta/delta_gates.h"
#include "kernels/l2_norm/l2_norm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "models/layers/linear.h"
#include "models/qwen/carried_states.h"
#include "models/qwen/causal_conv.h"

namespace hyscale {
namespace {

constexpr float kUnitEps = 1e-6f;  // of the L2 norms
constexpr int64_t kChunk = 64;     // tokens

// Decay rates spread evenly over (0, 16); the reference draws them from there.
Parameter decay_parameter(const std::string& name, int64_t heads) {
  const auto log_rate = [heads](int64_t element) { return std::log(16 * (static_cast<float>(element) + 0.5f) / static_cast<float>(heads)); };
  return {.name = name, .shape = {heads}, .init = Init::formula, .fp32 = true, .weight_decay = false, .formula = log_rate};
}

// [T, H, D] as [T H, D]
Tensor head_rows(const Tensor& x) { return x.view({x.size(0) * x.size(1), x.size(2)}); }

}  // namespace

GatedDeltaNet::GatedDeltaNet(ParameterStore& store, const std::string& prefix, const GatedDeltaConfig& c)
    : config_(c),
      qkv_(store.add({.name = prefix + "in_proj_qkv.weight", .shape = {2 * c.keys() + c.values(), c.hidden_size}})),
      z_(store.add({.name = prefix + "in_proj_z.weight", .shape = {c.values(), c.hidden_size}})),
      b_(store.add({.name = prefix + "in_proj_b.weight", .shape = {c.value_heads, c.hidden_size}})),
      a_(store.add({.name = prefix + "in_proj_a.weight", .shape = {c.value_heads, c.hidden_size}})),
      conv_(store.add({.name = prefix + "conv1d.weight", .shape = {2 * c.keys() + c.values(), 1, c.taps}})),
      a_log_(store.add(decay_parameter(prefix + "A_log", c.value_heads))),
      dt_bias_(store.add({.name = prefix + "dt_bias", .shape = {c.value_heads}, .init = Init::ones, .fp32 = true, .weight_decay = false})),
      norm_(store.add(norm_weight(prefix + "norm.weight", c.value_dim))),
      out_(store.add({.name = prefix + "out_proj.weight", .shape = {c.hidden_size, c.values()}})) {}

float GatedDeltaNet::scale() const { return 1 / std::sqrt(static_cast<float>(config_.key_dim)); }

void GatedDeltaNet::forward(Context& ctx, const Tensor& x, const Tensor& y, Saved& s) {
  const GatedDeltaConfig& c = config_;
  const int64_t tokens = x.size(0);
  const Shape of_values{tokens, c.value_heads, c.value_dim}, of_keys{tokens, c.key_heads, c.key_dim};
  s.x = x;
  const Tensor qkv_raw = ctx.saved->allocate(ctx.activation, {tokens, qkv_.shape[0]});
  s.qkv = ctx.saved->allocate(ctx.activation, qkv_raw.shape());
  for (Tensor* t : {&s.q, &s.k}) *t = ctx.saved->allocate(ctx.activation, of_keys);
  for (Tensor* t : {&s.q_r, &s.k_r}) *t = ctx.saved->allocate(DType::f32, {tokens, c.key_heads});
  for (Tensor* t : {&s.a, &s.b, &s.log_decay, &s.beta}) *t = ctx.saved->allocate(DType::f32, {tokens, c.value_heads});
  for (Tensor* t : {&s.o, &s.normed, &s.z}) *t = ctx.saved->allocate(ctx.activation, of_values);
  s.o_rstd = ctx.saved->allocate(DType::f32, {tokens * c.value_heads});

  linear(ctx, x, qkv_, qkv_raw);
  s.qkv_raw = causal_conv(ctx, qkv_raw, taps(conv_.value), 1, s.qkv);
  l2_norm({queries(s.qkv), kUnitEps, s.q, s.q_r, ctx.stream});
  l2_norm({keys(s.qkv), kUnitEps, s.k, s.k_r, ctx.stream});
  linear(ctx, x, a_, s.a);
  linear(ctx, x, b_, s.b);
  delta_gates({s.a, s.b, a_log_.value, dt_bias_.value, s.log_decay, s.beta, ctx.stream});
  const ArenaScope scope(*ctx.scratch);
  delta_rule(ctx, s);
  rms_norm({head_rows(s.o), norm_.value, c.eps, head_rows(s.normed), s.o_rstd, ctx.stream});
  linear(ctx, x, z_, s.z.as_matrix());
  const Tensor gated = ctx.scratch->allocate(ctx.activation, of_values);
  gate({s.normed, s.z, c.output_gate, gated, ctx.stream});
  linear(ctx, gated.as_matrix(), out_, y);
}

void GatedDeltaNet::delta_rule(Context& ctx, Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const CarriedStates before = ctx.ring ? states_before(ctx, s) : CarriedStates{};
  GatedDelta g{s.q, s.k, values(s.qkv), s.log_decay, s.beta, ctx.sequence->document_starts, scale(), kChunk, s.o, {}, ctx.stream};
  g.workspace = workspace(ctx, gated_delta_workspace_bytes(g));
  if (ctx.ring)
    gated_delta_carried(g, before);
  else
    gated_delta(g);
}

CarriedStates GatedDeltaNet::states_before(Context& ctx, Saved& s) {
  const std::vector<SegmentRuns>& segments = ctx.sequence->segment_runs;
  const int64_t n = static_cast<int64_t>(segments.size());
  s.maps = ctx.saved->allocate_zeroed(DType::f32, {n, config_.value_heads, config_.key_dim, config_.key_dim}, ctx.stream);
  s.before = ctx.saved->allocate(DType::f32, {n, config_.value_heads, config_.key_dim, config_.value_dim});
  const ArenaScope scope(*ctx.scratch);
  const Tensor states = ctx.scratch->allocate(DType::f32, s.before.shape());
  for (int64_t i = 0; i < n; ++i) {
    const ArenaScope inner(*ctx.scratch);
    const SegmentRuns& r = segments[static_cast<size_t>(i)];
    const auto part = [&](const Tensor& t) { return t.slice(0, r.last.begin, r.last.end); };
    DeltaMap m{part(s.k), part(values(s.qkv)), part(s.log_decay), part(s.beta), kChunk, r.passes() ? s.maps.select(0, i) : Tensor(), states.select(0, i), {}, ctx.stream};
    m.workspace = workspace(ctx, delta_map_workspace_bytes(m));
    delta_map(m);
  }
  carry_states(ctx, CarryDirection::forward, s.maps, states, s.before);
  return {s.before, ctx.sequence->segment_before};
}

// In the scratch arena.
CarriedStates GatedDeltaNet::gradients_behind(Context& ctx, const Tensor& dout, const Saved& s) {
  const std::vector<SegmentRuns>& segments = ctx.sequence->segment_runs;
  const Tensor behind = ctx.scratch->allocate(DType::f32, s.before.shape());
  const ArenaScope scope(*ctx.scratch);
  const Tensor dstates = ctx.scratch->allocate_zeroed(DType::f32, s.before.shape(), ctx.stream);
  for (int64_t i = 0; i < behind.size(0); ++i) {
    const SegmentRuns& r = segments[static_cast<size_t>(i)];
    if (!r.continues) continue;
    const ArenaScope inner(*ctx.scratch);
    const auto part = [&](const Tensor& t) { return t.slice(0, r.first.begin, r.first.end); };
    DeltaMapBackward m{part(s.q), part(s.k), part(s.log_decay), part(s.beta), scale(), kChunk, part(dout), dstates.select(0, i), {}, ctx.stream};
    m.workspace = workspace(ctx, delta_map_backward_workspace_bytes(m));
    delta_map_backward(m);
  }
  carry_states(ctx, CarryDirection::backward, s.maps, dstates, behind);
  return {behind, ctx.sequence->segment_behind};
}

void GatedDeltaNet::backward(Context& ctx, const Tensor& dy, const Tensor& dx, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dqkv = ctx.scratch->allocate(ctx.activation, s.qkv.shape());
  const Tensor gated = ctx.scratch->allocate(ctx.activation, s.o.shape()), dout = ctx.scratch->allocate(ctx.activation, s.o.shape());
  gate({s.normed, s.z, config_.output_gate, gated, ctx.stream});
  {
    const ArenaScope inner(*ctx.scratch);
    const Tensor dy_narrow = narrowed(ctx, dy);
    linear_wgrad(ctx, dy_narrow, gated.as_matrix(), out_);
    linear_dgrad(ctx, dy_narrow, out_, dout.as_matrix());
  }
  const Tensor dz = gated;  // read for the last time above
  gate_backward({s.normed, s.z, config_.output_gate, dout, dout, dz, ctx.stream});
  linear_wgrad(ctx, dz.as_matrix(), s.x, z_);
  linear_dgrad(ctx, dz.as_matrix(), z_, dx);
  {
    RmsNormBackward n{head_rows(s.o), norm_.value, s.o_rstd, head_rows(dout), head_rows(dout), false, norm_.grad, {}, ctx.stream};
    const ArenaScope inner(*ctx.scratch);
    n.workspace = workspace(ctx, rms_norm_backward_workspace_bytes(n));
    rms_norm_backward(n);
  }
  backward_heads(ctx, dout, dqkv, dx, s);
  const Tensor dqkv_raw = ctx.scratch->allocate(ctx.activation, s.qkv.shape());
  causal_conv_backward(ctx, s.qkv_raw, taps(conv_.value), 1, dqkv, dqkv_raw, taps(conv_.grad));
  linear_wgrad(ctx, dqkv_raw, s.x, qkv_);
  linear_dgrad(ctx, dqkv_raw, qkv_, dx, true);
}

// The delta rule, its gates and the norms of q and k. dqkv is overwritten, dx is added to.
void GatedDeltaNet::backward_heads(Context& ctx, const Tensor& dout, const Tensor& dqkv, const Tensor& dx, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const auto gates = [&] { return ctx.scratch->allocate(DType::f32, s.beta.shape()); };
  const Tensor dlog_decay = gates(), dbeta = gates(), da = gates(), db = gates();
  {
    const ArenaScope inner(*ctx.scratch);
    const CarriedStates dbehind = ctx.ring ? gradients_behind(ctx, dout, s) : CarriedStates{};
    GatedDeltaBackward g{s.q, s.k, values(s.qkv), s.log_decay, s.beta, ctx.sequence->document_starts, scale(), kChunk, dout, queries(dqkv), keys(dqkv), values(dqkv),
                         dlog_decay, dbeta, {}, ctx.stream};
    g.workspace = workspace(ctx, gated_delta_backward_workspace_bytes(g));
    if (ctx.ring)
      gated_delta_carried_backward(g, {s.before, ctx.sequence->segment_before}, dbehind);
    else
      gated_delta_backward(g);
  }
  l2_norm_backward({s.q, s.q_r, queries(dqkv), queries(dqkv), ctx.stream});
  l2_norm_backward({s.k, s.k_r, keys(dqkv), keys(dqkv), ctx.stream});
  delta_gates_backward({s.a, a_log_.value, dt_bias_.value, s.log_decay, s.beta, dlog_decay, dbeta, da, db, a_log_.grad, dt_bias_.grad, ctx.stream});
  linear_wgrad(ctx, da, s.x, a_);
  linear_dgrad(ctx, da, a_, dx, true);
  linear_wgrad(ctx, db, s.x, b_);
  linear_dgrad(ctx, db, b_, dx, true);
}

}  // namespace hyscale
