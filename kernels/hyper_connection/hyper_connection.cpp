#include "kernels/hyper_connection/hyper_connection.h"

#include <vector>

#include "kernels/common/op.h"
#include "kernels/common/rows.h"
#include "kernels/hyper_connection/sinkhorn.h"

namespace hyscale {

void hc_coefficients_cuda(const HcCoefficients&);
void hc_coefficients_backward_cuda(const HcCoefficientsBackward&);
size_t hc_coefficients_backward_cuda_workspace_bytes(const HcCoefficientsBackward&);
void hc_read_cuda(const HcRead&);
void hc_read_backward_cuda(const HcReadBackward&);
void hc_write_cuda(const HcWrite&);
void hc_write_backward_cuda(const HcWriteBackward&);
void hc_input_gradient_cuda(const HcInputGradient&);

namespace {

// Calls function(std::integral_constant<int, S>) for the number of streams.
template <typename Function>
void with_streams(int64_t streams, Function function) {
  switch (streams) {
    case 1: return function(std::integral_constant<int, 1>{});
    case 2: return function(std::integral_constant<int, 2>{});
    case 3: return function(std::integral_constant<int, 3>{});
    case 4: return function(std::integral_constant<int, 4>{});
    case 8: return function(std::integral_constant<int, 8>{});
    default: throw InternalError(concat("hyper-connections of ", streams, " streams; supported are 1, 2, 3, 4 and 8"));
  }
}

template <int S>
void read_logits(const float* mix, float rstd, const float* base, float scale, float (&z)[S][S]) {
  for (int e = 0; e < S * S; ++e) z[e / S][e % S] = rstd * mix[2 * S + e] * scale + base[2 * S + e];
}

template <int S>
void coefficients(const HcCoefficients& c) {
  const int64_t tokens = c.x.size(0), n = c.projection.size(1), width = S * c.x.size(2);
  const float *base = c.base.f32(), *scale = c.scale.f32();
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const float *x = c.x.f32() + t * width, *mix = c.projection.f32() + t * n;
    double squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) squares += double{x[i]} * x[i];
    const float rstd = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(width) + c.norm_eps));
    c.rstd.f32()[t] = rstd;
    for (int j = 0; j < S; ++j) c.pre.f32()[t * S + j] = sigmoid(rstd * mix[j] * scale[0] + base[j]) + c.eps;
    if (!c.post.defined()) continue;
    for (int k = 0; k < S; ++k) c.post.f32()[t * S + k] = 2 * sigmoid(rstd * mix[S + k] * scale[1] + base[S + k]);
    float z[S][S], m[S][S];
    read_logits<S>(mix, rstd, base, scale[2], z);
    hc_sinkhorn<S>(z, c.eps, 2 * c.iterations - 1, m);
    for (int e = 0; e < S * S; ++e) c.comb.f32()[t * S * S + e] = m[e / S][e % S];
  }
}

template <int S>
void coefficients_backward(const HcCoefficientsBackward& c) {
  const int64_t tokens = c.projection.size(0), n = c.projection.size(1), steps = 2 * c.iterations - 1;
  const float *base = c.base.f32(), *scale = c.scale.f32();
  const auto group = [&](int64_t i) { return i < S ? 0 : i < 2 * S ? 1 : 2; };
  std::vector<float> dz(static_cast<size_t>(tokens * n));
#pragma omp parallel
  {
    std::vector<float> iterates(static_cast<size_t>(steps * S * S));
#pragma omp for
    for (int64_t t = 0; t < tokens; ++t) {
      const float *mix = c.projection.f32() + t * n, rstd = c.rstd.f32()[t];
      float *d = dz.data() + t * n, *du = c.dprojection.f32() + t * n;
      for (int j = 0; j < S; ++j) {
        const float s = sigmoid(rstd * mix[j] * scale[0] + base[j]);
        d[j] = c.dpre.f32()[t * S + j] * s * (1 - s);
      }
      if (n > S) {
        for (int k = 0; k < S; ++k) {
          const float s = sigmoid(rstd * mix[S + k] * scale[1] + base[S + k]);
          d[S + k] = c.dpost.f32()[t * S + k] * 2 * s * (1 - s);
        }
        float z[S][S], g[S][S];
        read_logits<S>(mix, rstd, base, scale[2], z);
        for (int e = 0; e < S * S; ++e) g[e / S][e % S] = c.dcomb.f32()[t * S * S + e];
        hc_sinkhorn_backward<S>(z, c.eps, steps, iterates.data(), 1, g);
        for (int e = 0; e < S * S; ++e) d[2 * S + e] = g[e / S][e % S];
      }
      double dot = 0;
      for (int64_t i = 0; i < n; ++i) {
        const float dmix = d[i] * scale[group(i)];
        du[i] = rstd * dmix;
        dot += double{dmix} * mix[i];
      }
      // r = (mean + eps)^-1/2: d(sum v^2) = -1/2 (sum dmix fn v) r^3 / K, and X gets twice that times X.
      c.dsquares.f32()[t] = static_cast<float>(-dot * rstd * rstd * rstd / static_cast<double>(c.width));
    }
  }
  add_column_sums(c.dbase.f32(), tokens, n, [&](int64_t t, int64_t i) { return dz[static_cast<size_t>(t * n + i)]; });
  std::vector<float> by_column(static_cast<size_t>(n));
  add_column_sums(by_column.data(), tokens, n, [&](int64_t t, int64_t i) { return dz[static_cast<size_t>(t * n + i)] * c.rstd.f32()[t] * c.projection.f32()[t * n + i]; });
  for (int64_t i = 0; i < n; ++i) c.dscale.f32()[group(i)] += by_column[static_cast<size_t>(i)];
}

void read_ref(const HcRead& r) {
  const int64_t tokens = r.x.size(0), streams = r.x.size(1), width = r.x.size(2);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < width; ++i) {
      float sum = 0;
      for (int64_t j = 0; j < streams; ++j) sum += (r.pre.defined() ? r.pre.f32()[t * streams + j] : 1) * r.x.f32()[(t * streams + j) * width + i];
      r.h.f32()[t * width + i] = sum;
    }
}

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

void read_backward_ref(const HcReadBackward& r) {
  const int64_t tokens = r.x.size(0), streams = r.x.size(1), width = r.x.size(2);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t j = 0; j < streams; ++j)
      r.dpre.f32()[t * streams + j] = static_cast<float>(dot(r.x.f32() + (t * streams + j) * width, r.dh.f32() + t * width, width));
}

void write_ref(const HcWrite& w) {
  const int64_t tokens = w.x.size(0), streams = w.x.size(1), width = w.x.size(2);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const float *x = w.x.f32() + t * streams * width, *comb = w.comb.f32() + t * streams * streams;
    for (int64_t k = 0; k < streams; ++k)
      for (int64_t i = 0; i < width; ++i) {
        float sum = w.post.f32()[t * streams + k] * w.y.f32()[t * width + i];
        for (int64_t j = 0; j < streams; ++j) sum += comb[j * streams + k] * x[j * width + i];
        w.out.f32()[(t * streams + k) * width + i] = sum;
      }
  }
}

void write_backward_ref(const HcWriteBackward& w) {
  const int64_t tokens = w.x.size(0), streams = w.x.size(1), width = w.x.size(2);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const float *x = w.x.f32() + t * streams * width, *g = w.dout.f32() + t * streams * width, *comb = w.comb.f32() + t * streams * streams;
    for (int64_t k = 0; k < streams; ++k) {
      w.dpost.f32()[t * streams + k] = static_cast<float>(dot(w.y.f32() + t * width, g + k * width, width));
      for (int64_t j = 0; j < streams; ++j)
        w.dcomb.f32()[(t * streams + j) * streams + k] = static_cast<float>(dot(x + j * width, g + k * width, width));
    }
    for (int64_t i = 0; i < width; ++i) {
      float column[kMaxStreams], dy = 0;
      for (int64_t k = 0; k < streams; ++k) {
        column[k] = g[k * width + i];
        dy += w.post.f32()[t * streams + k] * column[k];
      }
      w.dy.f32()[t * width + i] = dy;
      for (int64_t j = 0; j < streams; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < streams; ++k) sum += comb[j * streams + k] * column[k];
        w.dx.f32()[(t * streams + j) * width + i] = sum;
      }
    }
  }
}

void input_gradient_ref(const HcInputGradient& g) {
  const int64_t tokens = g.x.size(0), streams = g.x.size(1), width = g.x.size(2);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t j = 0; j < streams; ++j) {
      const float pre = g.pre.f32()[t * streams + j], squares = g.dsquares.f32()[t];
      const float *x = g.x.f32() + (t * streams + j) * width, *dh = g.dh.f32() + t * width;
      float* dx = g.dx.f32() + (t * streams + j) * width;
      for (int64_t i = 0; i < width; ++i) dx[i] += pre * dh[i] + squares * x[i];
    }
}

void check_streams(const Tensor& x) {
  HYSCALE_CHECK(x.rank() == 3 && x.is_contiguous() && x.size(1) >= 1 && x.size(1) <= kMaxStreams, "x ", to_string(x), "; streams from 1 to ", kMaxStreams);
  HYSCALE_CHECK(!x.device().is_cuda() || x.size(1) == 4, "x ", to_string(x), "; 4 streams on CUDA");
}

void check_row(const Tensor& y, const char* name, const Tensor& x) {
  check_shape(y, name, {x.size(0), x.size(2)});
  HYSCALE_CHECK(y.is_contiguous(), name, " ", to_string(y), " is strided");
}

}  // namespace

void hc_coefficients(const HcCoefficients& c) {
  check_streams(c.x);
  const int64_t tokens = c.x.size(0), streams = c.x.size(1);
  const bool reads_only = !c.post.defined();
  const int64_t n = reads_only ? streams : 2 * streams + streams * streams;
  check_tensor(c.projection, "projection", DType::f32, {tokens, n});
  check_tensor(c.base, "base", DType::f32, {n});
  check_tensor(c.scale, "scale", DType::f32, {reads_only ? 1 : 3});
  check_tensor(c.rstd, "rstd", DType::f32, {tokens});
  check_tensor(c.pre, "pre", DType::f32, {tokens, streams});
  if (!reads_only) {
    check_tensor(c.post, "post", DType::f32, {tokens, streams});
    check_tensor(c.comb, "comb", DType::f32, {tokens, streams, streams});
  }
  HYSCALE_CHECK(c.iterations >= 1, c.iterations, " Sinkhorn iterations");
  HYSCALE_DISPATCH("hc_coefficients", c.x.device(), with_streams(streams, [&](auto s) { coefficients<s>(c); }), hc_coefficients_cuda(c));
}

void hc_coefficients_backward(const HcCoefficientsBackward& c) {
  const int64_t tokens = c.projection.size(0), n = c.projection.size(1), streams = c.dpre.size(1);
  const bool reads_only = n == streams;
  HYSCALE_CHECK(reads_only || n == 2 * streams + streams * streams, n, " coefficients for ", streams, " streams");
  check_tensor(c.dpre, "dpre", DType::f32, {tokens, streams});
  if (!reads_only) {
    check_tensor(c.dpost, "dpost", DType::f32, {tokens, streams});
    check_tensor(c.dcomb, "dcomb", DType::f32, {tokens, streams, streams});
  }
  check_tensor(c.dprojection, "dprojection", DType::f32, c.projection.shape());
  check_tensor(c.dsquares, "dsquares", DType::f32, {tokens});
  check_tensor(c.dbase, "dbase", DType::f32, c.base.shape());
  check_tensor(c.dscale, "dscale", DType::f32, c.scale.shape());
  HYSCALE_CHECK(c.width > 0 && c.iterations >= 1, "width ", c.width, ", ", c.iterations, " iterations");
  HYSCALE_DISPATCH("hc_coefficients_backward", c.projection.device(), with_streams(streams, [&](auto s) { coefficients_backward<s>(c); }),
                   hc_coefficients_backward_cuda(c));
}

size_t hc_coefficients_backward_workspace_bytes(const HcCoefficientsBackward& c) {
#ifdef HYSCALE_HAS_CUDA
  if (!c.projection.device().is_cpu()) return hc_coefficients_backward_cuda_workspace_bytes(c);
#endif
  (void)c;
  return 0;
}

void hc_read(const HcRead& r) {
  check_streams(r.x);
  check_row(r.h, "h", r.x);
  if (r.pre.defined()) check_tensor(r.pre, "pre", DType::f32, {r.x.size(0), r.x.size(1)});
  HYSCALE_DISPATCH("hc_read", r.x.device(), read_ref(r), hc_read_cuda(r));
}

void hc_read_backward(const HcReadBackward& r) {
  check_streams(r.x);
  check_row(r.dh, "dh", r.x);
  check_tensor(r.dpre, "dpre", DType::f32, {r.x.size(0), r.x.size(1)});
  HYSCALE_DISPATCH("hc_read_backward", r.x.device(), read_backward_ref(r), hc_read_backward_cuda(r));
}

void hc_write(const HcWrite& w) {
  check_streams(w.x);
  check_row(w.y, "y", w.x);
  check_shape(w.out, "out", w.x.shape());
  check_tensor(w.post, "post", DType::f32, {w.x.size(0), w.x.size(1)});
  check_tensor(w.comb, "comb", DType::f32, {w.x.size(0), w.x.size(1), w.x.size(1)});
  HYSCALE_CHECK(w.out.raw() != w.x.raw() || w.x.elements() == 0 || w.x.device().is_meta(), "out is the memory of x");
  HYSCALE_DISPATCH("hc_write", w.x.device(), write_ref(w), hc_write_cuda(w));
}

void hc_write_backward(const HcWriteBackward& w) {
  check_streams(w.x);
  for (const Tensor* row : {&w.y, &w.dy}) check_row(*row, "y and dy", w.x);
  for (const Tensor* streams : {&w.dout, &w.dx}) check_shape(*streams, "dout and dx", w.x.shape());
  for (const Tensor* post : {&w.post, &w.dpost}) check_tensor(*post, "post and dpost", DType::f32, {w.x.size(0), w.x.size(1)});
  for (const Tensor* comb : {&w.comb, &w.dcomb}) check_tensor(*comb, "comb and dcomb", DType::f32, {w.x.size(0), w.x.size(1), w.x.size(1)});
  HYSCALE_DISPATCH("hc_write_backward", w.x.device(), write_backward_ref(w), hc_write_backward_cuda(w));
}

void hc_input_gradient(const HcInputGradient& g) {
  check_streams(g.x);
  check_row(g.dh, "dh", g.x);
  check_shape(g.dx, "dx", g.x.shape());
  check_tensor(g.pre, "pre", DType::f32, {g.x.size(0), g.x.size(1)});
  check_tensor(g.dsquares, "dsquares", DType::f32, {g.x.size(0)});
  HYSCALE_DISPATCH("hc_input_gradient", g.x.device(), input_gradient_ref(g), hc_input_gradient_cuda(g));
}

}  // namespace hyscale
