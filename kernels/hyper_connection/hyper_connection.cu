// Four streams. Coefficients: a block per token for the norm, then a thread per token for the S x S iterations. Reading and
// writing the streams: a thread per token and eight columns. Their backwards: a block per token.
#include "kernels/common/column_sums.cuh"
#include "kernels/common/op.h"
#include "kernels/common/packs.cuh"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/hyper_connection/sinkhorn.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256, S = 4, kPairs = S * S;
constexpr int64_t kBackwardChunk = 1 << 15;  // tokens whose Sinkhorn iterates are kept at a time

__device__ __forceinline__ int group_of(int64_t i) { return i < S ? 0 : i < 2 * S ? 1 : 2; }

template <typename T, int kWidth>
__global__ void rstd_kernel(const T* __restrict__ x, int64_t width, float eps, float* __restrict__ rstd, int64_t tokens) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    float squares = 0;
    for (int64_t c = threadIdx.x * kWidth; c < width; c += kThreads * kWidth) {
      float v[kWidth];
      load_pack(x + t * width + c, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) squares += v[i] * v[i];
    }
    squares = block_sum<kThreads>(squares);
    if (threadIdx.x == 0) rstd[t] = rsqrtf(squares / static_cast<float>(width) + eps);
  }
}

struct Mix {
  const float *projection, *base, *scale, *rstd;
  int64_t n;
  __device__ float operator()(int64_t t, int64_t i) const { return rstd[t] * projection[t * n + i] * scale[group_of(i)] + base[i]; }
};

__device__ void read_logits(const Mix& mix, int64_t t, float (&z)[S][S]) {
#pragma unroll
  for (int e = 0; e < kPairs; ++e) z[e / S][e % S] = mix(t, 2 * S + e);
}

__global__ void coefficients_kernel(const Mix mix, float eps, int iterations, float* __restrict__ pre, float* __restrict__ post, float* __restrict__ comb, int64_t tokens) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (t >= tokens) return;
#pragma unroll
  for (int j = 0; j < S; ++j) pre[t * S + j] = sigmoid(mix(t, j)) + eps;
  if (!post) return;
#pragma unroll
  for (int k = 0; k < S; ++k) post[t * S + k] = 2 * sigmoid(mix(t, S + k));
  float z[S][S], m[S][S];
  read_logits(mix, t, z);
  hc_sinkhorn<S>(z, eps, 2 * iterations - 1, m);
#pragma unroll
  for (int e = 0; e < kPairs; ++e) comb[t * kPairs + e] = m[e / S][e % S];
}

struct CoefficientGradients {
  const float *dpre, *dpost, *dcomb;
  float *dprojection, *dsquares, *dz, *iterates;
  int64_t first, last, iterate_step;
  float eps, width;
  int steps;
};

__global__ void coefficients_backward_kernel(const Mix mix, const CoefficientGradients g) {
  const int64_t local = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, t = g.first + local;
  if (t >= g.last) return;
  const float r = mix.rstd[t];
  float dot = 0;
  const auto give = [&](int64_t i, float dz) {
    g.dz[t * mix.n + i] = dz;
    const float dmix = dz * mix.scale[group_of(i)];
    g.dprojection[t * mix.n + i] = r * dmix;
    dot += dmix * mix.projection[t * mix.n + i];
  };
#pragma unroll
  for (int j = 0; j < S; ++j) {
    const float s = sigmoid(mix(t, j));
    give(j, g.dpre[t * S + j] * s * (1 - s));
  }
  if (g.dpost) {
#pragma unroll
    for (int k = 0; k < S; ++k) {
      const float s = sigmoid(mix(t, S + k));
      give(S + k, g.dpost[t * S + k] * 2 * s * (1 - s));
    }
    float z[S][S], d[S][S];
    read_logits(mix, t, z);
#pragma unroll
    for (int e = 0; e < kPairs; ++e) d[e / S][e % S] = g.dcomb[t * kPairs + e];
    hc_sinkhorn_backward<S>(z, g.eps, g.steps, g.iterates + local, g.iterate_step, d);
#pragma unroll
    for (int e = 0; e < kPairs; ++e) give(2 * S + e, d[e / S][e % S]);
  }
  g.dsquares[t] = -dot * r * r * r / g.width;
}

struct ZTerm {
  const float* dz;
  int64_t n;
  __device__ float operator()(int64_t t, int64_t i) const { return dz[t * n + i]; }
};
struct ScaleTerm {
  const float *dz, *projection, *rstd;
  int64_t n;
  __device__ float operator()(int64_t t, int64_t i) const { return dz[t * n + i] * rstd[t] * projection[t * n + i]; }
};
__global__ void add_scale_groups(const float* by_column, float* dscale, int n) {
  float sums[3] = {};
  for (int i = 0; i < n; ++i) sums[group_of(i)] += by_column[i];
  for (int g = 0; g < (n > S ? 3 : 1); ++g) dscale[g] += sums[g];
}

template <typename T, int kWidth>
__global__ void read_kernel(const T* __restrict__ x, const float* __restrict__ pre, T* __restrict__ h, int64_t tokens, int64_t width) {
  const int64_t packs = width / kWidth;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < tokens * packs; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t t = i / packs, c = i % packs * kWidth;
    float sum[kWidth] = {};
#pragma unroll
    for (int j = 0; j < S; ++j) {
      const float weight = pre ? pre[t * S + j] : 1;
      float v[kWidth];
      load_pack(x + (t * S + j) * width + c, v);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] += weight * v[e];
    }
    store_pack(h + t * width + c, sum);
  }
}

template <typename T, int kWidth>
__global__ void write_kernel(const T* __restrict__ x, const T* __restrict__ y, const float* __restrict__ post, const float* __restrict__ comb, T* __restrict__ out,
                             int64_t tokens, int64_t width) {
  const int64_t packs = width / kWidth;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < tokens * packs; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t t = i / packs, c = i % packs * kWidth;
    float v[S][kWidth], w[kWidth];
    load_pack(y + t * width + c, w);
#pragma unroll
    for (int j = 0; j < S; ++j) load_pack(x + (t * S + j) * width + c, v[j]);
#pragma unroll
    for (int k = 0; k < S; ++k) {
      float sum[kWidth];
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] = post[t * S + k] * w[e];
#pragma unroll
      for (int j = 0; j < S; ++j) {
        const float weight = comb[t * kPairs + j * S + k];
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sum[e] += weight * v[j][e];
      }
      store_pack(out + (t * S + k) * width + c, sum);
    }
  }
}

template <typename T, int kWidth>
__global__ void read_backward_kernel(const T* __restrict__ x, const T* __restrict__ dh, float* __restrict__ dpre, int64_t tokens, int64_t width) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    float dots[S] = {};
    for (int64_t c = threadIdx.x * kWidth; c < width; c += kThreads * kWidth) {
      float d[kWidth], v[kWidth];
      load_pack(dh + t * width + c, d);
#pragma unroll
      for (int j = 0; j < S; ++j) {
        load_pack(x + (t * S + j) * width + c, v);
#pragma unroll
        for (int e = 0; e < kWidth; ++e) dots[j] += v[e] * d[e];
      }
    }
#pragma unroll
    for (int j = 0; j < S; ++j) {
      const float sum = block_sum<kThreads>(dots[j]);
      if (threadIdx.x == 0) dpre[t * S + j] = sum;
    }
  }
}

// dx may be the memory of dout: a thread reads its columns of all streams before it writes them.
template <typename T, int kWidth>
__global__ void write_backward_kernel(const T* __restrict__ x, const T* __restrict__ y, const float* __restrict__ post, const float* __restrict__ comb, const T* dout, T* dx,
                                      T* __restrict__ dy, float* __restrict__ dpost, float* __restrict__ dcomb, int64_t tokens, int64_t width) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    float post_dots[S] = {}, comb_dots[kPairs] = {};
    for (int64_t c = threadIdx.x * kWidth; c < width; c += kThreads * kWidth) {
      float g[S][kWidth], v[kWidth], sum[kWidth] = {};
#pragma unroll
      for (int k = 0; k < S; ++k) load_pack(dout + (t * S + k) * width + c, g[k]);
      load_pack(y + t * width + c, v);
#pragma unroll
      for (int k = 0; k < S; ++k)
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          post_dots[k] += v[e] * g[k][e];
          sum[e] += post[t * S + k] * g[k][e];
        }
      store_pack(dy + t * width + c, sum);
#pragma unroll
      for (int j = 0; j < S; ++j) {
        load_pack(x + (t * S + j) * width + c, v);
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sum[e] = 0;
#pragma unroll
        for (int k = 0; k < S; ++k) {
          const float weight = comb[t * kPairs + j * S + k];
#pragma unroll
          for (int e = 0; e < kWidth; ++e) {
            comb_dots[j * S + k] += v[e] * g[k][e];
            sum[e] += weight * g[k][e];
          }
        }
        store_pack(dx + (t * S + j) * width + c, sum);
      }
    }
#pragma unroll
    for (int k = 0; k < S; ++k) {
      const float sum = block_sum<kThreads>(post_dots[k]);
      if (threadIdx.x == 0) dpost[t * S + k] = sum;
    }
#pragma unroll
    for (int e = 0; e < kPairs; ++e) {
      const float sum = block_sum<kThreads>(comb_dots[e]);
      if (threadIdx.x == 0) dcomb[t * kPairs + e] = sum;
    }
  }
}

template <typename T, int kWidth>
__global__ void input_gradient_kernel(const T* __restrict__ x, const float* __restrict__ pre, const T* __restrict__ dh, const float* __restrict__ dsquares, T* __restrict__ dx,
                                      int64_t tokens, int64_t width) {
  const int64_t packs = width / kWidth;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < tokens * packs; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t t = i / packs, c = i % packs * kWidth;
    const float squares = dsquares[t];
    float d[kWidth];
    load_pack(dh + t * width + c, d);
#pragma unroll
    for (int j = 0; j < S; ++j) {
      float v[kWidth], g[kWidth];
      load_pack(x + (t * S + j) * width + c, v);
      load_pack(dx + (t * S + j) * width + c, g);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) g[e] += pre[t * S + j] * d[e] + squares * v[e];
      store_pack(dx + (t * S + j) * width + c, g);
    }
  }
}

unsigned grid_of_packs(int64_t tokens, int64_t width, int pack) { return grid_for(tokens * width / pack, kThreads, 132 * 32); }

}  // namespace

void hc_coefficients_cuda(const HcCoefficients& c) {
  const int64_t tokens = c.x.size(0), width = S * c.x.size(2);
  if (tokens == 0) return;
  with_packs("hc_coefficients", c.x.size(2), [&](auto type, auto pack) {
    using T = decltype(type);
    rstd_kernel<T, pack><<<grid_for(tokens, 1), kThreads, 0, stream_of(c.stream)>>>(c.x.data<T>(), width, c.norm_eps, c.rstd.f32(), tokens);
  }, c.x);
  const auto address = [](const Tensor& t) { return t.defined() ? t.f32() : nullptr; };
  coefficients_kernel<<<grid_for(tokens, 128, 1 << 30), 128, 0, stream_of(c.stream)>>>(
      Mix{c.projection.f32(), c.base.f32(), c.scale.f32(), c.rstd.f32(), c.projection.size(1)}, c.eps, static_cast<int>(c.iterations), c.pre.f32(), address(c.post),
      address(c.comb), tokens);
  check_launch("hc_coefficients");
}

size_t hc_coefficients_backward_cuda_workspace_bytes(const HcCoefficientsBackward& c) {
  const int64_t tokens = c.projection.size(0), n = c.projection.size(1), kept = std::min(tokens, kBackwardChunk) * (2 * c.iterations - 1) * kPairs;
  const auto floats = [](int64_t count) { return aligned_bytes(static_cast<size_t>(count) * sizeof(float)); };
  return floats(tokens * n) + floats(kept) + floats(kColumnSumBlocks * n) + floats(n);
}

void hc_coefficients_backward_cuda(const HcCoefficientsBackward& c) {
  const int64_t tokens = c.projection.size(0), n = c.projection.size(1), steps = 2 * c.iterations - 1, chunk = std::min(tokens, kBackwardChunk);
  if (tokens == 0) return;
  const cudaStream_t stream = stream_of(c.stream);
  Workspace workspace(c.workspace);
  float *dz = workspace.take<float>(tokens * n), *iterates = workspace.take<float>(chunk * steps * kPairs);
  float *partial = workspace.take<float>(kColumnSumBlocks * n), *by_column = workspace.take<float>(n);
  const auto address = [](const Tensor& t) { return t.defined() ? t.f32() : nullptr; };
  const Mix mix{c.projection.f32(), c.base.f32(), c.scale.f32(), c.rstd.f32(), n};
  for (int64_t first = 0; first < tokens; first += chunk) {
    const int64_t last = std::min(first + chunk, tokens);
    coefficients_backward_kernel<<<grid_for(last - first, 128), 128, 0, stream>>>(
        mix, CoefficientGradients{c.dpre.f32(), address(c.dpost), address(c.dcomb), c.dprojection.f32(), c.dsquares.f32(), dz, iterates, first, last, chunk, c.eps,
                                  static_cast<float>(c.width), static_cast<int>(steps)});
  }
  check_cuda(cudaMemsetAsync(by_column, 0, static_cast<size_t>(n) * sizeof(float), stream), "hc_coefficients_backward");
  column_sums_cuda(c.dbase.f32(), partial, tokens, n, ZTerm{dz, n}, stream);
  column_sums_cuda(by_column, partial, tokens, n, ScaleTerm{dz, mix.projection, mix.rstd, n}, stream);
  add_scale_groups<<<1, 1, 0, stream>>>(by_column, c.dscale.f32(), static_cast<int>(n));
  check_launch("hc_coefficients_backward");
}

void hc_read_cuda(const HcRead& r) {
  const int64_t tokens = r.x.size(0), width = r.x.size(2);
  if (tokens == 0) return;
  with_packs("hc_read", width, [&](auto type, auto pack) {
    using T = decltype(type);
    read_kernel<T, pack><<<grid_of_packs(tokens, width, pack), kThreads, 0, stream_of(r.stream)>>>(r.x.data<T>(), r.pre.defined() ? r.pre.f32() : nullptr, r.h.data<T>(), tokens, width);
  }, r.x, r.h);
}

void hc_read_backward_cuda(const HcReadBackward& r) {
  const int64_t tokens = r.x.size(0), width = r.x.size(2);
  if (tokens == 0) return;
  with_packs("hc_read_backward", width, [&](auto type, auto pack) {
    using T = decltype(type);
    read_backward_kernel<T, pack><<<grid_for(tokens, 1), kThreads, 0, stream_of(r.stream)>>>(r.x.data<T>(), r.dh.data<T>(), r.dpre.f32(), tokens, width);
  }, r.x, r.dh);
}

void hc_write_cuda(const HcWrite& w) {
  const int64_t tokens = w.x.size(0), width = w.x.size(2);
  if (tokens == 0) return;
  with_packs("hc_write", width, [&](auto type, auto pack) {
    using T = decltype(type);
    write_kernel<T, pack><<<grid_of_packs(tokens, width, pack), kThreads, 0, stream_of(w.stream)>>>(w.x.data<T>(), w.y.data<T>(), w.post.f32(), w.comb.f32(), w.out.data<T>(), tokens,
                                                                                                   width);
  }, w.x, w.y, w.out);
}

void hc_write_backward_cuda(const HcWriteBackward& w) {
  const int64_t tokens = w.x.size(0), width = w.x.size(2);
  if (tokens == 0) return;
  with_packs("hc_write_backward", width, [&](auto type, auto pack) {
    using T = decltype(type);
    write_backward_kernel<T, pack><<<grid_for(tokens, 1), kThreads, 0, stream_of(w.stream)>>>(w.x.data<T>(), w.y.data<T>(), w.post.f32(), w.comb.f32(), w.dout.data<T>(),
                                                                                             w.dx.data<T>(), w.dy.data<T>(), w.dpost.f32(), w.dcomb.f32(), tokens, width);
  }, w.x, w.y, w.dout, w.dx, w.dy);
}

void hc_input_gradient_cuda(const HcInputGradient& g) {
  const int64_t tokens = g.x.size(0), width = g.x.size(2);
  if (tokens == 0) return;
  with_packs("hc_input_gradient", width, [&](auto type, auto pack) {
    using T = decltype(type);
    input_gradient_kernel<T, pack><<<grid_of_packs(tokens, width, pack), kThreads, 0, stream_of(g.stream)>>>(g.x.data<T>(), g.pre.f32(), g.dh.data<T>(), g.dsquares.f32(),
                                                                                                            g.dx.data<T>(), tokens, width);
  }, g.x, g.dh, g.dx);
}

}  // namespace hyscale
