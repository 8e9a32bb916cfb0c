// Forward: one block per stream of a token. Backward: one block per token, which sums over its streams.
#include <cmath>

#include "kernels/common/packs.cuh"
#include "kernels/ngram_gate/ngram_gate.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256, kMostStreams = 8;
constexpr float kLeast = 1e-6f;

// sign(0) is 0.
__device__ float gate_of(float u) {
  const float root = sqrtf(fmaxf(fabsf(u), kLeast));
  return 1 / (1 + expf(u > 0 ? -root : u < 0 ? root : 0));
}

template <typename T, int kWidth>
__device__ __forceinline__ float block_dot(const T* a, const T* b, int64_t columns) {
  float sum = 0, x[kWidth], y[kWidth];
  for (int64_t c = threadIdx.x * kWidth; c < columns; c += kThreads * kWidth) {
    load_pack(a + c, x);
    load_pack(b + c, y);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += x[i] * y[i];
  }
  return block_sum<kThreads>(sum);
}

template <typename T, int kWidth>
__global__ void ngram_gate_kernel(const T* __restrict__ keys, const T* __restrict__ queries, const T* __restrict__ values, float* __restrict__ scores, T* __restrict__ out,
                                  int64_t rows, int64_t streams, int64_t columns, float scale) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float u = scale * block_dot<T, kWidth>(keys + row * columns, queries + row * columns, columns), share = gate_of(u);
    if (threadIdx.x == 0) scores[row] = u;
    for (int64_t c = threadIdx.x * kWidth; c < columns; c += kThreads * kWidth) {
      float v[kWidth];
      load_pack(values + row / streams * columns + c, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v[i] *= share;
      store_pack(out + row * columns + c, v);
    }
  }
}

template <typename T, int kWidth>
__global__ void ngram_gate_backward_kernel(const T* __restrict__ keys, const T* __restrict__ queries, const T* __restrict__ values, const float* __restrict__ scores,
                                           const T* __restrict__ dout, T* __restrict__ dkeys, T* __restrict__ dqueries, T* __restrict__ dvalues, int64_t tokens, int streams,
                                           int64_t columns, float scale) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    float shares[kMostStreams], dus[kMostStreams];
#pragma unroll
    for (int i = 0; i < kMostStreams; ++i) {
      if (i >= streams) break;
      const float u = scores[t * streams + i], share = gate_of(u);
      const float dshare = block_dot<T, kWidth>(dout + (t * streams + i) * columns, values + t * columns, columns);
      shares[i] = share;
      dus[i] = fabsf(u) > kLeast ? scale * dshare * share * (1 - share) / (2 * sqrtf(fabsf(u))) : 0;
    }
    for (int64_t c = threadIdx.x * kWidth; c < columns; c += kThreads * kWidth) {
      float sum[kWidth] = {}, x[kWidth];
#pragma unroll
      for (int i = 0; i < kMostStreams; ++i) {
        if (i >= streams) break;
        const int64_t at = (t * streams + i) * columns + c;
        load_pack(dout + at, x);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum[j] += shares[i] * x[j];
        load_pack(queries + at, x);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) x[j] *= dus[i];
        store_pack(dkeys + at, x);
        load_pack(keys + at, x);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) x[j] *= dus[i];
        store_pack(dqueries + at, x);
      }
      store_pack(dvalues + t * columns + c, sum);
    }
  }
}

float score_scale(int64_t columns) { return 1 / std::sqrt(static_cast<float>(columns)); }

}  // namespace

void ngram_gate_cuda(const NgramGate& g) {
  const int64_t streams = g.keys.size(1), rows = g.keys.size(0) * streams, columns = g.keys.size(2);
  if (rows == 0) return;
  with_packs("ngram_gate", columns, [&](auto type, auto pack) {
    using T = decltype(type);
    ngram_gate_kernel<T, pack><<<grid_for(rows, 1), kThreads, 0, stream_of(g.stream)>>>(g.keys.data<T>(), g.queries.data<T>(), g.values.data<T>(), g.scores.f32(), g.out.data<T>(), rows,
                                                                                      streams, columns, score_scale(columns));
  }, g.keys, g.queries, g.values, g.out);
}

void ngram_gate_backward_cuda(const NgramGateBackward& g) {
  const int64_t tokens = g.keys.size(0), streams = g.keys.size(1), columns = g.keys.size(2);
  HYSCALE_CHECK(streams <= kMostStreams, "keys ", to_string(g.keys), "; at most ", kMostStreams, " streams on CUDA");
  if (tokens == 0) return;
  with_packs("ngram_gate_backward", columns, [&](auto type, auto pack) {
    using T = decltype(type);
    ngram_gate_backward_kernel<T, pack><<<grid_for(tokens, 1), kThreads, 0, stream_of(g.stream)>>>(
        g.keys.data<T>(), g.queries.data<T>(), g.values.data<T>(), g.scores.f32(), g.dout.data<T>(), g.dkeys.data<T>(), g.dqueries.data<T>(), g.dvalues.data<T>(), tokens,
        static_cast<int>(streams), columns, score_scale(columns));
  }, g.keys, g.queries, g.values, g.dout, g.dkeys, g.dqueries, g.dvalues);
}

}  // namespace hyscale
