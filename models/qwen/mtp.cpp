#include "models/qwen/mtp.h"

#include "kernels/embedding/embedding.h"
#include "kernels/gated_residual/gated_residual.h"
#include "models/layers/linear.h"
#include "models/layers/vocabulary.h"
#include "models/qwen/zero_centred_norm.h"

namespace hyscale {
namespace {

// [T, n, C] as [T n, C]
Tensor stream_rows(const Tensor& x) { return x.view({x.size(0) * x.size(1), x.size(2)}); }

}  // namespace

QwenMtp::QwenMtp(ParameterStore& store, const std::string& prefix, const QwenConfig& c, int depths, int first_slot, Parameter& embedding, Parameter& lm_head)
    : eps_(c.residual.eps),
      depths_(depths),
      first_slot_(first_slot),
      unit_(store.begin_unit(true)),
      embedding_(embedding),
      lm_head_(lm_head),
      norm_e_(store.add(zero_centred_weight(prefix + "pre_fc_norm_embedding.weight", c.hidden_size))),
      norm_h_(store.add(zero_centred_weight(prefix + "pre_fc_norm_hidden.weight", c.residual.width()))),
      proj_e_(store.add({.name = prefix + "fc_embedding.weight", .shape = {c.hidden_size, c.hidden_size}})),
      proj_h_(store.add({.name = prefix + "fc_hidden.weight", .shape = {c.hidden_size, c.hidden_size}})),
      layer_(store, prefix + "layers.0.", c, true, -1),
      head_(store, prefix + "hyper_connection_mixer.", c.residual) {}

void QwenMtp::join(Context& ctx, const Tensor& streams, int depth, Depth& d) {
  const int64_t tokens = streams.size(0);
  // What the previous depth predicts is what this one reads.
  d.tokens = depth == 0 ? ctx.sequence->labels : ctx.sequence->mtp_labels.at(static_cast<size_t>(depth - 1));
  d.labels = ctx.sequence->mtp_labels.at(static_cast<size_t>(depth));
  d.streams = streams;
  for (Tensor* t : {&d.embedded, &d.e_normed}) *t = ctx.saved->allocate(ctx.activation, {tokens, streams.size(2)});
  d.h_normed = ctx.saved->allocate(ctx.activation, streams.shape());
  for (Tensor* t : {&d.x, &d.y}) *t = ctx.saved->allocate(ctx.residual(), streams.shape());
  for (Tensor* t : {&d.e_rstd, &d.h_rstd}) *t = ctx.saved->allocate(DType::f32, {1, tokens});
  embedding({d.tokens, embedding_.value, d.embedded, ctx.stream});
  group_norm(ctx, d.embedded, norm_e_, eps_, d.e_normed, d.e_rstd);
  group_norm(ctx, streams.as_matrix(), norm_h_, eps_, d.h_normed.as_matrix(), d.h_rstd);
  const ArenaScope scope(*ctx.scratch);
  const Tensor e = ctx.scratch->allocate(ctx.residual(), d.embedded.shape());
  linear(ctx, d.e_normed, proj_e_, e);
  linear(ctx, stream_rows(d.h_normed), proj_h_, stream_rows(d.x));
  streams_write({d.x, {}, e, d.x, ctx.stream});
}

// dx: gradient of the layer's input. Adds to d, that of the streams below.
void QwenMtp::join_backward(Context& ctx, const Tensor& dx, const Tensor& d, const Depth& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dstreams = ctx.scratch->allocate(ctx.residual(), s.embedded.shape()), de = ctx.scratch->allocate(ctx.activation, s.embedded.shape());
  const Tensor dh = ctx.scratch->allocate(ctx.activation, dx.shape());
  streams_write_backward({{}, {}, dx, dstreams, {}, ctx.stream});
  const Tensor de_out = narrowed(ctx, dstreams), dh_out = narrowed(ctx, stream_rows(dx));
  linear_wgrad(ctx, de_out, s.e_normed, proj_e_);
  linear_dgrad(ctx, de_out, proj_e_, de);
  group_norm_backward(ctx, s.embedded, norm_e_, s.e_rstd, de, de);
  embedding_backward(ctx, s.tokens, de, embedding_);
  linear_wgrad(ctx, dh_out, stream_rows(s.h_normed), proj_h_);
  linear_dgrad(ctx, dh_out, proj_h_, stream_rows(dh));
  group_norm_backward(ctx, s.streams.as_matrix(), norm_h_, s.h_rstd, dh.as_matrix(), d.as_matrix(), true);
}

void QwenMtp::train(Context& ctx, Recompute recompute, const Tensor& streams, const Tensor& d, const Tensor& inv_freq) {
  const ArenaScope saved(*ctx.saved), scope(*ctx.scratch);
  std::vector<Depth> depths(static_cast<size_t>(depths_));
  for (int i = 0; i < depths_; ++i) {
    Depth& s = depths[static_cast<size_t>(i)];
    join(ctx, i == 0 ? streams : depths[static_cast<size_t>(i - 1)].y, i, s);
    s.dy = ctx.scratch->allocate(ctx.residual(), streams.shape());
    const Arena::Mark before_layer = ctx.saved->mark();
    layer_.forward(ctx, Pass::forward, first_slot_ + i, s.x, s.y, inv_freq, s.layer);
    if (recompute == Recompute::layer) ctx.saved->rewind(before_layer);
    head_.train(ctx, s.y, s.labels, lm_head_, ctx.scales.mtp, ctx.sums->mtp, s.dy);
  }
  for (int i = depths_ - 1; i >= 0; --i) {
    Depth& s = depths[static_cast<size_t>(i)];
    const ArenaScope recomputed(*ctx.saved);
    if (recompute == Recompute::layer) layer_.forward(ctx, Pass::recompute, first_slot_ + i, s.x, s.y, inv_freq, s.layer);
    layer_.backward(ctx, first_slot_ + i, s.dy, inv_freq, s.layer);
    join_backward(ctx, s.dy, i == 0 ? d : depths[static_cast<size_t>(i - 1)].dy, s);
  }
}

void QwenMtp::evaluate(Context& ctx, const Tensor& streams, const Tensor& inv_freq) {
  const ArenaScope saved(*ctx.saved);
  Tensor below = streams;
  for (int i = 0; i < depths_; ++i) {
    Depth s;
    join(ctx, below, i, s);
    {
      const ArenaScope layer_scope(*ctx.saved);
      if (ctx.stage == Stage::warmup)
        layer_.warmup(ctx, first_slot_ + i, s.x, s.y, inv_freq);
      else
        layer_.forward(ctx, Pass::evaluate, first_slot_ + i, s.x, s.y, inv_freq, s.layer);
    }
    head_.loss(ctx, s.y, s.labels, lm_head_, ctx.sums->mtp);
    below = s.y;
  }
}

}  // namespace hyscale
