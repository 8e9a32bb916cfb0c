#include "models/layers/token_compressor.h"

#include "kernels/compressor/compressor.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"

namespace hyscale {
namespace {

Parameter keys_gates(const std::string& prefix, const CompressorConfig& c, ParameterGroup group) {
  const Shape half{c.channels(), c.hidden_size};
  return {.name = prefix + "wkv_wgate", .shape = {2 * c.channels(), c.hidden_size}, .group = group,
          .hf = {{prefix + "wkv.weight", half, 0}, {prefix + "wgate.weight", half, half.elements()}}};
}

}  // namespace

TokenCompressor::TokenCompressor(ParameterStore& store, const std::string& prefix, const CompressorConfig& c, ParameterGroup group)
    : config_(c),
      keys_gates_(store.add(keys_gates(prefix, c, group))),
      ape_(store.add({.name = prefix + "ape", .shape = {c.ratio, c.channels()}, .group = group, .init = Init::zeros, .fp32 = true, .weight_decay = false, .kind = ParameterRole::vectors})),
      norm_(store.add({.name = prefix + "norm.weight", .shape = {c.dims}, .group = group, .init = Init::ones, .weight_decay = false})) {}

void TokenCompressor::rotate(Context& ctx, const Tensor& entries, const CompressedEntries& e, const Tensor& inv_freq, bool inverse) const {
  const Tensor turned = entries.slice(1, config_.dims - config_.rope_dim, config_.dims);
  const Tensor one_head(turned.raw(), turned.dtype(), turned.device(), {turned.size(0), 1, turned.size(1)}, {turned.stride(0), turned.size(1), 1});
  rope({one_head, e.positions, inv_freq, true, inverse, ctx.stream});
}

void TokenCompressor::forward(Context& ctx, const Tensor& u, const CompressedEntries& e, const Tensor& inv_freq, const Tensor& entries, Saved& s) {
  const int64_t channels = config_.channels();
  s.u = u;
  s.keys_gates = ctx.saved->allocate(DType::f32, {u.size(0), 2 * channels});
  s.pooled = ctx.saved->allocate(ctx.activation, {e.own(), config_.dims});
  s.rstd = ctx.saved->allocate(DType::f32, {e.own()});
  linear(ctx, u, keys_gates_, s.keys_gates);
  compressor({s.keys_gates.slice(1, 0, channels), s.keys_gates.slice(1, channels, 2 * channels), ape_.value, e.first_token, e.positions, s.pooled, ctx.stream});
  rms_norm({s.pooled, norm_.value, config_.eps, entries, s.rstd, ctx.stream});
  rotate(ctx, entries, e, inv_freq, false);
}

void TokenCompressor::backward(Context& ctx, const Tensor& dentries, const CompressedEntries& e, const Tensor& inv_freq, const Tensor& du, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const int64_t channels = config_.channels();
  rotate(ctx, dentries, e, inv_freq, true);
  rms_norm_backward(ctx, s.pooled, norm_, s.rstd, dentries, dentries);
  const Tensor d = ctx.scratch->allocate(ctx.activation, s.keys_gates.shape());
  CompressorBackward c{s.keys_gates.slice(1, 0, channels), s.keys_gates.slice(1, channels, 2 * channels), ape_.value, e.first_token, e.positions, dentries,
                       d.slice(1, 0, channels), d.slice(1, channels, 2 * channels), ape_.grad, {}, ctx.stream};
  c.workspace = workspace(ctx, compressor_backward_workspace_bytes(c));
  compressor_backward(c);
  linear_wgrad(ctx, d, s.u, keys_gates_);
  if (du.defined()) linear_dgrad(ctx, d, keys_gates_, du, true);
}

}  // namespace hyscale
