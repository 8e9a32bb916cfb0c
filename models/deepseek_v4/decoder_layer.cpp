#include "models/deepseek_v4/decoder_layer.h"

#include "kernels/rms_norm/rms_norm.h"
#include "models/layers/norm.h"

namespace hyscale {
namespace {

MoeConfig moe_config(const V4Config& c, bool hashed) {
  MoeConfig m = c.moe;
  m.hash_vocabulary = hashed ? c.vocab_size : 0;
  return m;
}

}  // namespace

V4Layer::V4Layer(ParameterStore& store, const std::string& prefix, const V4Config& c, Compression compression, int64_t ratio, bool hashed)
    : eps_(c.norm_eps),
      attention_(store, prefix + "attn.", c, compression, ratio),
      moe_(store, prefix + "ffn.", moe_config(c, hashed)),
      attention_norm_(store.add(norm_weight(prefix + "attn_norm.weight", c.hidden_size))),
      feed_forward_norm_(store.add(norm_weight(prefix + "ffn_norm.weight", c.hidden_size))),
      attention_hyper_(store, prefix + "hc_attn_", c.hyper),
      feed_forward_hyper_(store, prefix + "hc_ffn_", c.hyper) {}

void V4Layer::enter(Context& ctx, const Tensor& x, HyperConnection& hyper, const Parameter& norm, Site& s) {
  const Shape shape{x.size(0), x.size(2)};
  s.h = ctx.saved->allocate(ctx.residual(), shape);
  s.rstd = ctx.saved->allocate(DType::f32, {x.size(0)});
  s.u = ctx.saved->allocate(ctx.activation, shape);
  s.y = ctx.saved->allocate(ctx.residual(), shape);
  hyper.read(ctx, x, s.h, s.hyper);
  rms_norm({s.h, norm.value, eps_, s.u, s.rstd, ctx.stream});
}

void V4Layer::forward(Context& ctx, Pass pass, int slot, const Tensor& x, const Tensor& out, const V4Rope& rope, Saved& s) {
  enter(ctx, x, attention_hyper_, attention_norm_, s.attention_site);
  attention_.forward(ctx, pass, slot, s.attention_site.u, s.attention_site.y, rope.of(attention_.compression()), s.attention);
  s.x1 = ctx.saved->allocate(ctx.residual(), x.shape());
  attention_hyper_.write(ctx, s.attention_site.y, s.x1, s.attention_site.hyper);
  enter(ctx, s.x1, feed_forward_hyper_, feed_forward_norm_, s.feed_forward_site);
  moe_.forward(ctx, pass, s.feed_forward_site.u, s.feed_forward_site.y, s.moe);
  feed_forward_hyper_.write(ctx, s.feed_forward_site.y, out, s.feed_forward_site.hyper);
}

// dh is overwritten; then everything that reaches X through h is added to d.
void V4Layer::leave_backward(Context& ctx, const Tensor& du, const Tensor& dh, const Tensor& d, HyperConnection& hyper, const HyperConnection::Gradients& g, const Parameter& norm,
                                const Site& s) {
  rms_norm_backward(ctx, s.h, norm, s.rstd, du, dh);
  hyper.read_backward(ctx, dh, g, d, s.hyper);
}

void V4Layer::backward(Context& ctx, int slot, const Tensor& d, const V4Rope& rope, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dy = ctx.scratch->allocate(ctx.residual(), s.attention_site.y.shape()), du = ctx.scratch->allocate(ctx.activation, dy.shape());
  const Tensor dh = dy;  // once the sub-layer has read it
  HyperConnection::Gradients g = feed_forward_hyper_.write_backward(ctx, s.feed_forward_site.y, d, dy, s.feed_forward_site.hyper);
  moe_.backward(ctx, dy, du, s.moe);
  leave_backward(ctx, du, dh, d, feed_forward_hyper_, g, feed_forward_norm_, s.feed_forward_site);
  g = attention_hyper_.write_backward(ctx, s.attention_site.y, d, dy, s.attention_site.hyper);
  attention_.backward(ctx, slot, dy, du, rope.of(attention_.compression()), s.attention);
  leave_backward(ctx, du, dh, d, attention_hyper_, g, attention_norm_, s.attention_site);
}

}  // namespace hyscale
