#include "models/glm/mtp.h"

#include "kernels/embedding/embedding.h"
#include "kernels/rms_norm/rms_norm.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/vocabulary.h"

namespace hyscale {

GlmMtp::GlmMtp(ParameterStore& store, const std::string& prefix, const GlmConfig& c, int depths, int first_slot, Parameter& embedding, Parameter& lm_head)
    : eps_(c.norm_eps),
      depths_(depths),
      first_slot_(first_slot),
      unit_(store.begin_unit(true)),
      embedding_(embedding),
      lm_head_(lm_head),
      enorm_(store.add(norm_weight(prefix + "enorm.weight", c.attention.hidden_size))),
      hnorm_(store.add(norm_weight(prefix + "hnorm.weight", c.attention.hidden_size))),
      eh_proj_(store.add({.name = prefix + "eh_proj.weight", .shape = {c.attention.hidden_size, 2 * c.attention.hidden_size}})),
      layer_(store, prefix, c, true, false),
      head_norm_(store.add(norm_weight(prefix + "shared_head.norm.weight", c.attention.hidden_size))) {}

void GlmMtp::join(Context& ctx, const Tensor& h, int depth, Depth& d) {
  const int64_t tokens = h.size(0), width = h.size(1);
  // What the previous depth predicts is what this one reads.
  d.tokens = depth == 0 ? ctx.sequence->labels : ctx.sequence->mtp_labels.at(static_cast<size_t>(depth - 1));
  d.labels = ctx.sequence->mtp_labels.at(static_cast<size_t>(depth));
  d.h = h;
  d.embedded = ctx.saved->allocate(ctx.activation, h.shape());
  d.e_rstd = ctx.saved->allocate(DType::f32, {tokens});
  d.h_rstd = ctx.saved->allocate(DType::f32, {tokens});
  d.joined = ctx.saved->allocate(ctx.activation, {tokens, 2 * width});
  d.x = ctx.saved->allocate(ctx.residual(), h.shape());
  d.y = ctx.saved->allocate(ctx.residual(), h.shape());
  d.y_rstd = ctx.saved->allocate(DType::f32, {tokens});
  d.out = ctx.saved->allocate(ctx.activation, h.shape());
  embedding({d.tokens, embedding_.value, d.embedded, ctx.stream});
  rms_norm({d.embedded, enorm_.value, eps_, d.joined.slice(1, 0, width), d.e_rstd, ctx.stream});
  rms_norm({h, hnorm_.value, eps_, d.joined.slice(1, width, 2 * width), d.h_rstd, ctx.stream});
  linear(ctx, d.joined, eh_proj_, d.x);
}

void GlmMtp::head(Context& ctx, Depth& d, bool backward) {
  rms_norm({d.y, head_norm_.value, eps_, d.out, d.y_rstd, ctx.stream});
  if (!backward) return lm_head_loss(ctx, d.out, lm_head_, d.labels, ctx.sums->mtp);
  d.dout = ctx.saved->allocate(ctx.activation, d.out.shape());
  lm_head_loss_backward(ctx, d.out, lm_head_, d.labels, ctx.scales.mtp, ctx.sums->mtp, d.dout);
}

void GlmMtp::join_backward(Context& ctx, const Tensor& dx, const Tensor& dh, const Depth& d) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dx_narrow = narrowed(ctx, dx);
  const int64_t width = dx.size(1);
  const Tensor djoined = ctx.scratch->allocate(ctx.activation, d.joined.shape());
  linear_wgrad(ctx, dx_narrow, d.joined, eh_proj_);
  linear_dgrad(ctx, dx_narrow, eh_proj_, djoined);
  const Tensor de = djoined.slice(1, 0, width);
  rms_norm_backward(ctx, d.embedded, enorm_, d.e_rstd, de, de);
  embedding_backward(ctx, d.tokens, de, embedding_);
  rms_norm_backward(ctx, d.h, hnorm_, d.h_rstd, djoined.slice(1, width, 2 * width), dh, true);
}

void GlmMtp::train(Context& ctx, Recompute recompute, const Tensor& h, const Tensor& dh, const Tensor& inv_freq) {
  const ArenaScope saved(*ctx.saved);
  std::vector<Depth> depths(static_cast<size_t>(depths_));
  for (int i = 0; i < depths_; ++i) {
    Depth& d = depths[static_cast<size_t>(i)];
    join(ctx, i == 0 ? h : depths[static_cast<size_t>(i - 1)].out, i, d);
    const Arena::Mark before_layer = ctx.saved->mark();
    layer_.forward(ctx, Pass::forward, first_slot_ + i, d.x, d.y, inv_freq, d.layer);
    if (recompute == Recompute::layer) ctx.saved->rewind(before_layer);
    head(ctx, d, true);
  }
  for (int i = depths_ - 1; i >= 0; --i) {
    Depth& d = depths[static_cast<size_t>(i)];
    const ArenaScope scope(*ctx.scratch);
    const Tensor dy = ctx.scratch->allocate(ctx.residual(), d.y.shape());
    rms_norm_backward(ctx, d.y, head_norm_, d.y_rstd, d.dout, dy);
    const ArenaScope recomputed(*ctx.saved);
    if (recompute == Recompute::layer) layer_.forward(ctx, Pass::recompute, first_slot_ + i, d.x, d.y, inv_freq, d.layer);
    layer_.backward(ctx, first_slot_ + i, dy, inv_freq, d.layer);
    join_backward(ctx, dy, i == 0 ? dh : depths[static_cast<size_t>(i - 1)].dout, d);
  }
}

void GlmMtp::evaluate(Context& ctx, const Tensor& h, const Tensor& inv_freq) {
  const ArenaScope scope(*ctx.saved);
  Tensor below = h;
  for (int i = 0; i < depths_; ++i) {
    Depth d;
    join(ctx, below, i, d);
    {
      const ArenaScope layer_scope(*ctx.saved);
      if (ctx.stage == Stage::warmup)
        layer_.warmup(ctx, first_slot_ + i, d.x, d.y, inv_freq);
      else
        layer_.forward(ctx, Pass::evaluate, first_slot_ + i, d.x, d.y, inv_freq, d.layer);
    }
    head(ctx, d, false);
    below = d.out;
  }
}

}  // namespace hyscale
