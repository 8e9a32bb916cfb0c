#include "kernels/common/packs.cuh"
#include "kernels/gated_residual/gated_residual.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 16;
constexpr int kMostStreams = 8;

__device__ __forceinline__ float sigmoid(float z) { return 1 / (1 + __expf(-z)); }

// Packs of kWidth columns: `at` in the streams, `row` of one of n streams, `token_at` in what has one row per token.
template <int kWidth>
struct Place {
  int64_t at, row, token_at;
  __device__ Place(int64_t pack, int64_t streams, int64_t columns) : at(pack * kWidth), row(at / columns), token_at(row / streams * columns + at % columns) {}
};

template <typename T, int kWidth>
__global__ void streams_read_kernel(const T* __restrict__ normed, const T* __restrict__ gates, T* __restrict__ x, int64_t packs, int64_t streams, int64_t columns) {
  const float share = 1.0f / static_cast<float>(streams);
  for (int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; p < packs; p += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t at = p * kWidth, first = at / columns * streams * columns + at % columns;
    float sum[kWidth] = {}, v[kWidth], g[kWidth];
    for (int64_t i = 0; i < streams; ++i) {
      load_pack(normed + first + i * columns, v);
      load_pack(gates + first + i * columns, g);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += share * sigmoid(g[j]) * v[j];
    }
    store_pack(x + at, sum);
  }
}

template <typename T, int kWidth>
__global__ void streams_read_backward_kernel(const T* __restrict__ normed, const T* __restrict__ gates, const T* __restrict__ dx, T* __restrict__ dnormed, T* __restrict__ dgates,
                                             int64_t packs, int64_t streams, int64_t columns) {
  const float share = 1.0f / static_cast<float>(streams);
  for (int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; p < packs; p += static_cast<int64_t>(gridDim.x) * kThreads) {
    const Place<kWidth> place(p, streams, columns);
    float v[kWidth], g[kWidth], d[kWidth];
    load_pack(normed + place.at, v);
    load_pack(gates + place.at, g);
    load_pack(dx + place.token_at, d);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float s = sigmoid(g[j]);
      g[j] = share * d[j] * v[j] * s * (1 - s);
      d[j] *= share * s;
    }
    store_pack(dgates + place.at, g);
    store_pack(dnormed + place.at, d);
  }
}

// out may be streams.
template <typename T, int kWidth>
__global__ void streams_write_kernel(const T* streams_in, const float* __restrict__ logits, const T* __restrict__ y, T* out, int64_t packs, int64_t streams, int64_t columns) {
  for (int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; p < packs; p += static_cast<int64_t>(gridDim.x) * kThreads) {
    const Place<kWidth> place(p, streams, columns);
    const float s = logits ? 2 * sigmoid(logits[place.row]) : 1;
    float v[kWidth] = {}, d[kWidth];
    if (streams_in) load_pack(streams_in + place.at, v);
    load_pack(y + place.token_at, d);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] += s * d[j];
    store_pack(out + place.at, v);
  }
}

// One block per token.
template <typename T, int kWidth>
__global__ void streams_write_backward_kernel(const float* __restrict__ logits, const T* __restrict__ y, const T* __restrict__ dout, T* __restrict__ dy, float* __restrict__ dlogits,
                                              int64_t tokens, int streams, int64_t columns) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    float shares[kMostStreams], dots[kMostStreams] = {};
#pragma unroll
    for (int i = 0; i < kMostStreams; ++i) shares[i] = i < streams && logits ? 2 * sigmoid(logits[t * streams + i]) : 1;
    for (int64_t c = threadIdx.x * kWidth; c < columns; c += kThreads * kWidth) {
      float sum[kWidth] = {}, v[kWidth] = {}, d[kWidth];
      if (logits) load_pack(y + t * columns + c, v);
#pragma unroll
      for (int i = 0; i < kMostStreams; ++i) {
        if (i >= streams) break;
        load_pack(dout + (t * streams + i) * columns + c, d);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          sum[j] += shares[i] * d[j];
          dots[i] += d[j] * v[j];
        }
      }
      store_pack(dy + t * columns + c, sum);
    }
    if (!logits) continue;
#pragma unroll
    for (int i = 0; i < kMostStreams; ++i) {
      if (i >= streams) break;
      const float dot = block_sum<kThreads>(dots[i]);
      if (threadIdx.x == 0) dlogits[t * streams + i] = dot * shares[i] * (1 - shares[i] / 2);
    }
  }
}

}  // namespace

void streams_read_cuda(const StreamsRead& r) {
  if (r.x.elements() == 0) return;
  with_packs("streams_read", r.x.size(1), [&](auto type, auto pack) {
    using T = decltype(type);
    const int64_t packs = r.x.elements() / pack;
    streams_read_kernel<T, pack><<<grid_for(packs, kThreads, kMostBlocks), kThreads, 0, stream_of(r.stream)>>>(r.normed.data<T>(), r.gates.data<T>(), r.x.data<T>(), packs,
                                                                                                              r.normed.size(1), r.x.size(1));
  }, r.x, r.normed, r.gates);
}

void streams_read_backward_cuda(const StreamsReadBackward& r) {
  if (r.dx.elements() == 0) return;
  with_packs("streams_read_backward", r.dx.size(1), [&](auto type, auto pack) {
    using T = decltype(type);
    const int64_t packs = r.normed.elements() / pack;
    streams_read_backward_kernel<T, pack><<<grid_for(packs, kThreads, kMostBlocks), kThreads, 0, stream_of(r.stream)>>>(
        r.normed.data<T>(), r.gates.data<T>(), r.dx.data<T>(), r.dnormed.data<T>(), r.dgates.data<T>(), packs, r.normed.size(1), r.dx.size(1));
  }, r.dx, r.normed, r.gates, r.dnormed, r.dgates);
}

void streams_write_cuda(const StreamsWrite& w) {
  if (w.out.elements() == 0) return;
  with_packs("streams_write", w.y.size(1), [&](auto type, auto pack) {
    using T = decltype(type);
    const int64_t packs = w.out.elements() / pack;
    streams_write_kernel<T, pack><<<grid_for(packs, kThreads, kMostBlocks), kThreads, 0, stream_of(w.stream)>>>(
        w.streams.defined() ? w.streams.data<T>() : nullptr, w.logits.defined() ? w.logits.f32() : nullptr, w.y.data<T>(), w.out.data<T>(), packs, w.out.size(1), w.y.size(1));
  }, w.out, w.streams, w.y);
}

void streams_write_backward_cuda(const StreamsWriteBackward& w) {
  const int64_t tokens = w.dout.size(0), streams = w.dout.size(1), columns = w.dout.size(2);
  HYSCALE_CHECK(streams <= kMostStreams, "dout ", to_string(w.dout), "; at most ", kMostStreams, " streams on CUDA");
  if (tokens == 0) return;
  const bool weighted = w.logits.defined();
  with_packs("streams_write_backward", columns, [&](auto type, auto pack) {
    using T = decltype(type);
    streams_write_backward_kernel<T, pack><<<grid_for(tokens, 1), kThreads, 0, stream_of(w.stream)>>>(
        weighted ? w.logits.f32() : nullptr, weighted ? w.y.data<T>() : nullptr, w.dout.data<T>(), w.dy.data<T>(), weighted ? w.dlogits.f32() : nullptr, tokens, static_cast<int>(streams), columns);
  }, w.dout, weighted ? w.y : Tensor(), w.dy);
}

}  // namespace hyscale
