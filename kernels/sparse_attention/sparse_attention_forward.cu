// Sparse attention forward on Hopper for rows of 576 numbers with values of 512 (GLM's latent rows) and of 512 that are keys
// and values at once (DeepSeek-V4's): one block per query, all heads (at most 64, padded) as one
// wgmma tile. A producer warpgroup gathers 64 selected rows at a time into a swizzled tile that serves as keys (rows are N)
// and as values (rows are the contraction) without a copy. Warpgroup 0 computes the scores and their softmax; both
// warpgroups hold half of the value columns and multiply by the probabilities it leaves in shared memory.
#include <cuda_runtime.h>

#include "kernels/common/hopper.cuh"
#include "kernels/sparse_attention/row_gather.cuh"
#include "kernels/sparse_attention/sparse_attention_cuda.h"

namespace hyscale {
namespace {

using namespace hopper;
using bf16 = __nv_bfloat16;
constexpr int kThreads = 384, kMath = 256, kGroup = 128;
constexpr int kKeys = 64, kHeads = 64, kDv = 512, kStages = 2;

template <int kDk>
struct Shared {
  static constexpr int kBlocks = kDk / 64;
  alignas(1024) unsigned char q[kBlocks][kTileBytes];
  alignas(1024) unsigned char kv[kStages][kBlocks][kTileBytes];
  alignas(1024) unsigned char p[kTileBytes];  // [heads][keys]
  float rescale[kHeads];
  float inverse_sum[kHeads];
  uint64_t q_full, full[kStages], empty[kStages];
};

struct Arguments {
  const bf16 *q, *kv;
  const int32_t *indices, *counts;
  const float* sink;  // [heads], or null
  bf16* out;
  float* lse;
  int64_t kv_stride;
  int heads, k;
  float scale_log2;  // scale * log2(e)
};

enum Barrier { kProbabilities = 1, kConsumed, kScores };

// 128 threads: 8 neighbouring threads fetch 128 bytes of a row.
template <int kDk>
__device__ void produce(Shared<kDk>& s, const Arguments& a, int count, int thread) {
  const int64_t t = blockIdx.x;
  const int piece = thread % 8, first_row = thread / 8;
  for (int r = 0; r < 4; ++r) {
    const int head = first_row + 16 * r;
    const bf16* from = a.q + (t * a.heads + min(head, a.heads - 1)) * kDk + piece * 8;
    const uint32_t to = shared_address(s.q) + tile_offset(head, piece);
    for (int b = 0; b < kDk / 64; ++b) copy16(to + b * kTileBytes, from + b * 64, head < a.heads);
  }
  copies_done();
  fence_to_async();
  barrier_arrive(&s.q_full);
  const int tiles = (count + kKeys - 1) / kKeys;
  RowGather<kDk / 64> gather(a.kv, a.kv_stride, a.indices + t * a.k, count, thread);
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % kStages;
    if (tile >= kStages) barrier_wait(&s.empty[stage], (tile / kStages - 1) & 1);
    gather.fetch(s.kv[stage]);
    gather.load_ids(tile + 1);
    copies_done();
    fence_to_async();
    barrier_arrive(&s.full[stage]);
  }
}

struct Softmax {
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {};  // of the thread's two head rows; sums are of its own columns
};

// Scores of one tile to probabilities in shared memory; leaves the factors by which earlier sums shrink.
template <int kDk>
__device__ void probabilities(Shared<kDk>& s, Softmax& state, float (&x)[32], int visible, float scale_log2, int thread) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 32; ++i) x[i] = i / 4 * 8 + column + (i & 1) < visible ? x[i] * scale_log2 : -INFINITY;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = state.most[half];
#pragma unroll
    for (int j = 0; j < 8; ++j) most = fmaxf(most, fmaxf(x[4 * j + 2 * half], x[4 * j + 2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float factor = exp2f(state.most[half] - most);  // first tile: exp2(-inf) = 0
    state.most[half] = most;
    state.sum[half] *= factor;
    if (lane % 4 == 0) s.rescale[row + 8 * half] = factor;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float p0 = exp2f(x[4 * j + 2 * half] - most), p1 = exp2f(x[4 * j + 2 * half + 1] - most);
      state.sum[half] += p0 + p1;
      *reinterpret_cast<__nv_bfloat162*>(s.p + tile_offset(row + 8 * half, j) + column * 2) = __floats2bfloat162_rn(p0, p1);
    }
  }
}

template <int kPart, int kDk>  // which half of the value columns; part 0 makes the probabilities
__device__ void consume(Shared<kDk>& s, const Arguments& a, int count, int thread) {
  const int64_t t = blockIdx.x;
  const int tiles = (count + kKeys - 1) / kKeys;
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
  float out[128] = {};
  Softmax state;
  if (kPart == 0 && a.sink)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.most[half] = a.sink[min(row + 8 * half, a.heads - 1)] * 1.4426950408889634f;
      state.sum[half] = lane % 4 == 0;  // its exponential, once per row
    }
  if (kPart == 0) barrier_wait(&s.q_full, 0);
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % kStages;
    barrier_wait(&s.full[stage], tile / kStages & 1);
    if (kPart == 0) {
      float x[32];
      pin(x);
      wgmma_begin();
#pragma unroll
      for (int kk = 0; kk < kDk / 16; ++kk)
        wgmma_n64<0, 0>(x, row_descriptor(shared_address(s.q[kk / 4])) + kk % 4 * 2,
                        row_descriptor(shared_address(s.kv[stage][kk / 4])) + kk % 4 * 2, kk != 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin(x);
      if (tile > 0) named_sync(kConsumed, kMath);  // the other half has read the last tile's probabilities
      probabilities(s, state, x, count - tile * kKeys, a.scale_log2, thread);
      fence_to_async();
    } else if (tile > 0) {
      named_sync(kConsumed, kMath);
    }
    named_sync(kProbabilities, kMath);
    const float factor0 = s.rescale[row], factor1 = s.rescale[row + 8];
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i] *= i & 2 ? factor1 : factor0;
    pin(out);
    wgmma_begin();
#pragma unroll
    for (int kk = 0; kk < kKeys / 16; ++kk)
      wgmma_n256<0, 1>(out, row_descriptor(shared_address(s.p)) + kk * 2, column_descriptor(shared_address(s.kv[stage][kPart * 4])) + kk * 128, 1);
    wgmma_commit();
    wgmma_wait<0>();
    pin(out);
    barrier_arrive(&s.empty[stage]);
  }
  if (kPart == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int head = row + 8 * half;
      if (lane % 4 == 0) s.inverse_sum[head] = 1 / sum;
      if (lane % 4 == 0 && head < a.heads) a.lse[t * a.heads + head] = state.most[half] * 0.6931471805599453f + logf(sum);
    }
  }
  named_sync(kScores, kMath);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = row + 8 * half;
    if (head >= a.heads) continue;
    const float factor = s.inverse_sum[head];
    bf16* to = a.out + (t * a.heads + head) * kDv + kPart * 256 + column;
#pragma unroll
    for (int j = 0; j < 32; ++j)
      *reinterpret_cast<__nv_bfloat162*>(to + 8 * j) = __floats2bfloat162_rn(out[4 * j + 2 * half] * factor, out[4 * j + 2 * half + 1] * factor);
  }
}

template <int kDk>
__global__ void __launch_bounds__(kThreads, 1) forward(const Arguments a) {
  extern __shared__ unsigned char raw[];
  Shared<kDk>& s = *reinterpret_cast<Shared<kDk>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t t = blockIdx.x;
  const int count = a.counts[t];
  if (count == 0) {
    for (int i = thread; i < a.heads * kDv; i += kThreads) a.out[t * a.heads * kDv + i] = __float2bfloat16(0.f);
    for (int h = thread; h < a.heads; h += kThreads) a.lse[t * a.heads + h] = a.sink ? a.sink[h] : -INFINITY;
    return;
  }
  if (thread == 0) {
    barrier_init(&s.q_full, kGroup);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], kGroup);
      barrier_init(&s.empty[i], kMath);
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  const int group = thread / kGroup;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    produce(s, a, count, thread);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    if (group == 1) consume<0, kDk>(s, a, count, thread - kGroup);
    else consume<1, kDk>(s, a, count, thread - 2 * kGroup);
  }
}

}  // namespace

template <int kDk>
static void launch_forward(const SparseAttentionForward& f) {
  constexpr size_t kShared = sizeof(Shared<kDk>) + 1024 <= 232448 ? sizeof(Shared<kDk>) + 1024 : 232448;
  static_assert(sizeof(Shared<kDk>) <= 232448);
  const Arguments a{f.q.data<bf16>(), f.kv.data<bf16>(), f.selection.indices.i32(), f.selection.counts.i32(), f.sink.defined() ? f.sink.f32() : nullptr, f.out.data<bf16>(), f.lse.f32(),
                    f.kv.stride(0), static_cast<int>(f.q.size(1)), static_cast<int>(f.selection.indices.size(1)), f.scale * 1.4426950408889634f};
  const cudaError_t status = cudaFuncSetAttribute(forward<kDk>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  HYSCALE_CHECK(status == cudaSuccess, kShared, " bytes of shared memory: ", cudaGetErrorString(status));
  forward<kDk><<<static_cast<unsigned>(f.q.size(0)), kThreads, kShared, static_cast<cudaStream_t>(f.stream.handle)>>>(a);
  check_attention_launch("sparse_attention_forward_hopper");
}

void sparse_attention_forward_hopper(const SparseAttentionForward& f) { f.q.size(2) == 576 ? launch_forward<576>(f) : launch_forward<512>(f); }

}  // namespace hyscale
