#include "models/qwen/decoder_layer.h"

namespace hyscale {

QwenLayer::QwenLayer(ParameterStore& store, const std::string& prefix, const QwenConfig& c, bool sparse, int ngram_number)
    : attention_residual_(store, prefix + "attn_hyper_connection.", c.residual, true),
      feed_forward_residual_(store, prefix + "mlp_hyper_connection.", c.residual, true),
      feed_forward_(store, prefix + "mlp.", c) {
  if (ngram_number >= 0) ngram_.emplace(store, prefix + "ple.", c.ngram, c.residual, ngram_number);
  if (sparse)
    attention_.emplace(store, prefix + "self_attn.", c.attention);
  else
    delta_.emplace(store, prefix + "linear_attn.", c.delta);
}

void QwenLayer::enter(Context& ctx, const Tensor& streams, GatedResidual& residual, Site& s) {
  s.x = ctx.saved->allocate(ctx.activation, {streams.size(0), streams.size(2)});
  s.y = ctx.saved->allocate(ctx.residual(), s.x.shape());
  residual.read(ctx, streams, s.x, s.residual);
}

template <typename Attend>
void QwenLayer::walk(Context& ctx, Pass pass, const Tensor& streams, const Tensor& out, Saved& s, Attend attend) {
  s.streams = streams;
  if (ngram_) {
    s.streams = ctx.saved->allocate(ctx.residual(), streams.shape());
    ngram_->forward(ctx, streams, s.streams, s.ngram);
  }
  s.middle = ctx.saved->allocate(ctx.residual(), streams.shape());
  enter(ctx, s.streams, attention_residual_, s.attention_site);
  attend(s.attention_site.x, s.attention_site.y);
  attention_residual_.write(ctx, s.attention_site.y, s.middle, s.attention_site.residual);
  enter(ctx, s.middle, feed_forward_residual_, s.feed_forward_site);
  feed_forward_.forward(ctx, pass, s.feed_forward_site.x, s.feed_forward_site.y, s.feed_forward);
  feed_forward_residual_.write(ctx, s.feed_forward_site.y, out, s.feed_forward_site.residual);
}

void QwenLayer::forward(Context& ctx, Pass pass, int slot, const Tensor& streams, const Tensor& out, const Tensor& inv_freq, Saved& s) {
  walk(ctx, pass, streams, out, s, [&](const Tensor& x, const Tensor& y) {
    if (delta_)
      delta_->forward(ctx, x, y, s.delta);
    else
      attention_->forward(ctx, pass, slot, x, y, inv_freq, s.attention);
  });
}

void QwenLayer::warmup(Context& ctx, int slot, const Tensor& streams, const Tensor& out, const Tensor& inv_freq) {
  Saved s;
  walk(ctx, Pass::evaluate, streams, out, s, [&](const Tensor& x, const Tensor& y) {
    if (delta_)
      delta_->forward(ctx, x, y, s.delta);
    else
      attention_->warmup(ctx, slot, x, y, inv_freq);
  });
}

void QwenLayer::backward(Context& ctx, int slot, const Tensor& d, const Tensor& inv_freq, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dy = ctx.scratch->allocate(ctx.residual(), s.attention_site.y.shape()), dx = ctx.scratch->allocate(ctx.activation, dy.shape());
  {
    const ArenaScope inner(*ctx.scratch);
    const Tensor dlogits = feed_forward_residual_.write_backward(ctx, d, dy, s.feed_forward_site.residual);
    feed_forward_.backward(ctx, dy, dx, s.feed_forward);
    feed_forward_residual_.read_backward(ctx, dx, dlogits, d, s.feed_forward_site.residual);
  }
  {
    const ArenaScope inner(*ctx.scratch);
    const Tensor dlogits = attention_residual_.write_backward(ctx, d, dy, s.attention_site.residual);
    if (delta_)
      delta_->backward(ctx, dy, dx, s.delta);
    else
      attention_->backward(ctx, slot, dy, inv_freq, dx, s.attention);
    attention_residual_.read_backward(ctx, dx, dlogits, d, s.attention_site.residual);
  }
  if (ngram_) ngram_->backward(ctx, d, s.ngram);
}

}  // namespace hyscale
