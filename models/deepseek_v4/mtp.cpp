#include "models/deepseek_v4/mtp.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/rms_norm/rms_norm.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/vocabulary.h"

namespace hyscale {
namespace {

// [T, S, C] as [T S, C]
Tensor stream_rows(const Tensor& x) { return x.view({x.size(0) * x.size(1), x.size(2)}); }

}  // namespace

V4Mtp::V4Mtp(ParameterStore& store, const std::string& prefix, const V4Config& c, Parameter& embedding, Parameter& lm_head)
    : eps_(c.norm_eps),
      unit_(store.begin_unit(true)),
      streams_(c.hyper.streams),
      embedding_(embedding),
      lm_head_(lm_head),
      enorm_(store.add(norm_weight(prefix + "enorm.weight", c.hidden_size))),
      hnorm_(store.add(norm_weight(prefix + "hnorm.weight", c.hidden_size))),
      e_proj_(store.add({.name = prefix + "e_proj.weight", .shape = {c.hidden_size, c.hidden_size}})),
      h_proj_(store.add({.name = prefix + "h_proj.weight", .shape = {c.hidden_size, c.hidden_size}})),
      layer_(store, prefix, c, Compression::none, 0, false),
      head_(store, prefix + "hc_head_", prefix + "norm.weight", c.hyper) {}

void V4Mtp::join(Context& ctx, const Tensor& x, Joined& j) {
  const int64_t tokens = x.size(0), width = x.size(2);
  j.x = x;
  j.embedded = ctx.saved->allocate(ctx.activation, {tokens, width});
  j.e_rstd = ctx.saved->allocate(DType::f32, {tokens});
  j.e_normed = ctx.saved->allocate(ctx.activation, {tokens, width});
  j.h_rstd = ctx.saved->allocate(DType::f32, {tokens * streams_});
  j.h_normed = ctx.saved->allocate(ctx.activation, {tokens * streams_, width});
  j.joined = ctx.saved->allocate(ctx.residual(), x.shape());
  embedding({ctx.sequence->labels, embedding_.value, j.embedded, ctx.stream});
  rms_norm({j.embedded, enorm_.value, eps_, j.e_normed, j.e_rstd, ctx.stream});
  rms_norm({stream_rows(x), hnorm_.value, eps_, j.h_normed, j.h_rstd, ctx.stream});
  linear(ctx, j.h_normed, h_proj_, stream_rows(j.joined));
  // The token's part goes to every stream.
  for (int64_t s = 0; s < streams_; ++s) {
    const Tensor stream = j.joined.select(1, s);
    scratch_gemm(ctx, j.e_normed, e_proj_.value, stream, false, true, 1, 1);
  }
}

void V4Mtp::join_backward(Context& ctx, const Tensor& djoined, const Tensor& d, const Joined& j) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dstreams = ctx.scratch->allocate(ctx.residual(), j.embedded.shape()), de = ctx.scratch->allocate(ctx.activation, j.embedded.shape());
  const Tensor dh = ctx.scratch->allocate(ctx.activation, j.h_normed.shape());
  hc_read({djoined, {}, dstreams, ctx.stream});
  const Tensor de_out = narrowed(ctx, dstreams), dh_out = narrowed(ctx, stream_rows(djoined));
  linear_wgrad(ctx, de_out, j.e_normed, e_proj_);
  linear_dgrad(ctx, de_out, e_proj_, de);
  rms_norm_backward(ctx, j.embedded, enorm_, j.e_rstd, de, de);
  embedding_backward(ctx, ctx.sequence->labels, de, embedding_);
  linear_wgrad(ctx, dh_out, j.h_normed, h_proj_);
  linear_dgrad(ctx, dh_out, h_proj_, dh);
  rms_norm_backward(ctx, stream_rows(j.x), hnorm_, j.h_rstd, dh, stream_rows(d), true);
}

void V4Mtp::train(Context& ctx, Recompute recompute, const Tensor& x, const Tensor& d, const V4Rope& rope) {
  const ArenaScope saved(*ctx.saved), scope(*ctx.scratch);
  Joined j;
  V4Layer::Saved layer;
  join(ctx, x, j);
  const Tensor y = ctx.saved->allocate(ctx.residual(), x.shape()), dy = ctx.scratch->allocate(ctx.residual(), x.shape());
  const Arena::Mark before_layer = ctx.saved->mark();
  layer_.forward(ctx, Pass::forward, -1, j.joined, y, rope, layer);
  if (recompute == Recompute::layer) ctx.saved->rewind(before_layer);
  head_.train(ctx, y, ctx.sequence->mtp_labels.at(0), lm_head_, ctx.scales.mtp, ctx.sums->mtp, dy);
  if (recompute == Recompute::layer) layer_.forward(ctx, Pass::recompute, -1, j.joined, y, rope, layer);
  layer_.backward(ctx, -1, dy, rope, layer);
  join_backward(ctx, dy, d, j);
}

void V4Mtp::evaluate(Context& ctx, const Tensor& x, const V4Rope& rope) {
  const ArenaScope saved(*ctx.saved);
  Joined j;
  V4Layer::Saved layer;
  join(ctx, x, j);
  const Tensor y = ctx.saved->allocate(ctx.residual(), x.shape());
  layer_.forward(ctx, Pass::evaluate, -1, j.joined, y, rope, layer);
  head_.loss(ctx, y, ctx.sequence->mtp_labels.at(0), lm_head_, ctx.sums->mtp);
}

}  // namespace hyscale
