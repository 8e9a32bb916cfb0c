#include "models/layers/hyper_connection.h"

#include <cmath>

#include "kernels/hyper_connection/hyper_connection.h"
#include "models/layers/linear.h"

namespace hyscale {
namespace {

// The coefficients' projection is f32: tokens are widened a chunk at a time.
constexpr int64_t kChunk = 4096;

Parameter coefficient(const std::string& name, Shape shape, Init init) {
  return {.name = name, .shape = shape, .init = init, .fp32 = true, .weight_decay = init == Init::normal};
}

// A new model starts near an ordinary residual stream: the mean is read, y is written with weight 1, streams stay apart.
Parameter base_of(const std::string& name, int64_t streams, int64_t n) {
  Parameter p = coefficient(name, {n}, Init::formula);
  p.formula = [streams](int64_t i) {
    if (i < streams) return streams > 1 ? -std::log(static_cast<float>(streams - 1)) : 8.0f;
    if (i < 2 * streams) return 0.0f;
    const int64_t pair = i - 2 * streams;
    return pair / streams == pair % streams ? 0.0f : -8.0f;
  };
  return p;
}

Parameter scale_of(const std::string& name, int64_t n) {
  Parameter p = coefficient(name, {n}, Init::formula);
  p.formula = [](int64_t) { return 0.01f; };
  return p;
}

}  // namespace

HyperConnection::HyperConnection(ParameterStore& store, const std::string& prefix, const HyperConnectionConfig& c, bool reads_only)
    : config_(c),
      fn_(store.add(coefficient(prefix + "fn", {reads_only ? c.streams : c.streams * (2 + c.streams), c.streams * c.hidden_size}, Init::normal))),
      base_(store.add(base_of(prefix + "base", c.streams, fn_.shape[0]))),
      scale_(store.add(scale_of(prefix + "scale", reads_only ? 1 : 3))) {}

void HyperConnection::project(Context& ctx, const Tensor& x, const Tensor& projection) const {
  const Tensor rows = x.as_matrix();
  for (int64_t first = 0; first < rows.size(0); first += kChunk) {
    const int64_t last = std::min(first + kChunk, rows.size(0));
    linear(ctx, rows.slice(0, first, last), fn_, projection.slice(0, first, last));
  }
}

void HyperConnection::project_backward(Context& ctx, const Tensor& dprojection, const Tensor& d, const Saved& s) {
  const Tensor rows = s.x.as_matrix(), drows = d.as_matrix();
  for (int64_t first = 0; first < rows.size(0); first += kChunk) {
    const int64_t last = std::min(first + kChunk, rows.size(0));
    const Tensor du = dprojection.slice(0, first, last);
    linear_wgrad(ctx, du, rows.slice(0, first, last), fn_);
    linear_dgrad(ctx, du, fn_, drows.slice(0, first, last), true);
  }
}

void HyperConnection::read(Context& ctx, const Tensor& x, const Tensor& h, Saved& s) {
  const int64_t tokens = x.size(0), streams = config_.streams;
  const bool writes = fn_.shape[0] > streams;
  s.x = x;
  s.projection = ctx.saved->allocate(DType::f32, {tokens, fn_.shape[0]});
  s.rstd = ctx.saved->allocate(DType::f32, {tokens});
  s.pre = ctx.saved->allocate(DType::f32, {tokens, streams});
  if (writes) {
    s.post = ctx.saved->allocate(DType::f32, {tokens, streams});
    s.comb = ctx.saved->allocate(DType::f32, {tokens, streams, streams});
  }
  project(ctx, x, s.projection);
  hc_coefficients({x, s.projection, base_.value, scale_.value, config_.norm_eps, config_.eps, config_.iterations, s.rstd, s.pre, s.post, s.comb, ctx.stream});
  hc_read({x, s.pre, h, ctx.stream});
}

void HyperConnection::write(Context& ctx, const Tensor& y, const Tensor& out, const Saved& s) const { hc_write({s.x, y, s.post, s.comb, out, ctx.stream}); }

HyperConnection::Gradients HyperConnection::write_backward(Context& ctx, const Tensor& y, const Tensor& d, const Tensor& dy, const Saved& s) const {
  const Gradients g{ctx.scratch->allocate(DType::f32, s.post.shape()), ctx.scratch->allocate(DType::f32, s.comb.shape())};
  hc_write_backward({s.x, y, s.post, s.comb, d, d, dy, g.dpost, g.dcomb, ctx.stream});
  return g;
}

void HyperConnection::read_backward(Context& ctx, const Tensor& dh, const Gradients& g, const Tensor& d, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dpre = ctx.scratch->allocate(DType::f32, s.pre.shape()), dprojection = ctx.scratch->allocate(DType::f32, s.projection.shape());
  const Tensor dsquares = ctx.scratch->allocate(DType::f32, s.rstd.shape());
  hc_read_backward({s.x, dh, dpre, ctx.stream});
  HcCoefficientsBackward c{s.projection, base_.value, scale_.value, s.rstd, config_.streams * config_.hidden_size, config_.eps, config_.iterations, dpre, g.dpost, g.dcomb,
                           dprojection, dsquares, base_.grad, scale_.grad, {}, ctx.stream};
  {
    const ArenaScope inner(*ctx.scratch);
    c.workspace = workspace(ctx, hc_coefficients_backward_workspace_bytes(c));
    hc_coefficients_backward(c);
  }
  hc_input_gradient({s.x, s.pre, dh, dsquares, d, ctx.stream});
  project_backward(ctx, dprojection, d, s);
}

}  // namespace hyscale
