// Block attention forward on Hopper, for heads of 256 numbers: one block per (query, group of heads), two blocks per multiprocessor.
// A group's 12 heads would fill a fifth of the 64 rows of a product, so keys and values are the rows and the heads (padded to 16) the
// columns: X^T = K Q^T, O^T = V^T P^T. A producer warpgroup gathers 64 rows of K and of V in turn; the other one multiplies.
//
// What bounds it: 2051 tokens of 2 groups x 256 numbers, K and V, are 4.2 MB per query, 0.84 us of an H200's 5 TB/s; the products,
// with their padding, are 67 MFLOP, 0.1 us. So products are cheap, and a query's rows are gathered without regard to its neighbours':
// the union of several queries' blocks would save bytes only as far as they share blocks.
#include "kernels/block_attention/attended_tokens.cuh"
#include "kernels/block_attention/block_attention_cuda.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"

namespace hyscale {
namespace {

using namespace hopper;
constexpr int kThreads = 256, kGroup = 128;
constexpr int kKeys = 64, kHeads = 16, kDims = 256, kBlocks = kDims / 64, kStages = 3, kAhead = 2;
constexpr float kLog2E = 1.4426950408889634f;

struct Shared {
  alignas(1024) unsigned char rows[kStages][kBlocks][kTileBytes];
  alignas(1024) unsigned char q[kBlocks][kHeads * 128];
  alignas(1024) unsigned char p[kHeads * 128];  // [heads][keys]
  float parts[4][kHeads];                       // of warps
  uint64_t q_full, full[kStages], empty[kStages];
};

struct Arguments {
  const bf16 *q, *k, *v;
  AttendedTokens tokens;
  bf16* out;
  float* lse;
  int groups, heads;  // heads of a group
  float scale_log2;
};

__device__ void produce(Shared& s, const Arguments& a, int64_t t, int group, int count, int thread) {
  const int piece = thread % 8, first_row = thread / 8;
  for (int b = 0; b < kBlocks; ++b)
    copy16(shared_address(s.q[b]) + tile_offset(first_row, piece),
           a.q + ((t * a.groups + group) * a.heads + min(first_row, a.heads - 1)) * kDims + b * 64 + piece * 8, first_row < a.heads);
  copies_done();
  fence_to_async();
  barrier_arrive(&s.q_full);
  const int turns = (count + kKeys - 1) / kKeys * 2;
  const auto publish = [&](int turn) {
    fence_to_async();
    barrier_arrive(&s.full[turn % kStages]);
  };
  int32_t rows[4];
  for (int turn = 0; turn < turns; ++turn) {
    const int stage = turn % kStages;
    if (turn % 2 == 0)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int slot = turn / 2 * kKeys + first_row + 16 * r;
        rows[r] = slot < count ? static_cast<int32_t>(a.tokens.row(t, slot, count)) : -1;
      }
    if (turn >= kStages) barrier_wait(&s.empty[stage], (turn / kStages - 1) & 1);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const bf16* from = (turn % 2 ? a.v : a.k) + (static_cast<int64_t>(max(rows[r], 0)) * a.groups + group) * kDims + piece * 8;
      const uint32_t to = shared_address(s.rows[stage]) + tile_offset(first_row + 16 * r, piece);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) copy16(to + b * kTileBytes, from + b * 64, rows[r] >= 0);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (turn < kAhead) continue;
    asm volatile("cp.async.wait_group %0;" ::"n"(kAhead) : "memory");
    publish(turn - kAhead);
  }
  copies_done();
  for (int turn = max(0, turns - kAhead); turn < turns; ++turn) publish(turn);
}

// Of a thread's four heads: i = 2 j + e is head 8 j + lane % 4 * 2 + e.
struct Softmax {
  float most[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, sum[4] = {};  // sums are of its own keys
};

template <typename Combine>
__device__ __forceinline__ void over_rows(float (&x)[4], Combine combine) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) x[i] = combine(x[i], __shfl_xor_sync(~0u, x[i], offset));
}
// The same over all four warps' rows.
template <typename Combine>
__device__ __forceinline__ void over_keys(Shared& s, float (&x)[4], int thread, Combine combine) {
  const int lane = thread % 32, warp = thread / 32;
  over_rows(x, combine);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (lane < 4) s.parts[warp][i / 2 * 8 + lane * 2 + i % 2] = x[i];
  named_sync(1, kGroup);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = i / 2 * 8 + lane % 4 * 2 + i % 2;
    x[i] = combine(combine(s.parts[0][head], s.parts[1][head]), combine(s.parts[2][head], s.parts[3][head]));
  }
}

// Scores of one tile to probabilities in shared memory, and the factors by which earlier sums shrink.
__device__ __forceinline__ void probabilities(Shared& s, Softmax& state, float (&x)[8], float (&factor)[4], int visible, float scale_log2, int thread) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
  float most[4];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = row + (i / 2 & 1) * 8 < visible ? x[i] * scale_log2 : -INFINITY;
#pragma unroll
  for (int i = 0; i < 4; ++i) most[i] = fmaxf(x[i / 2 * 4 + i % 2], x[i / 2 * 4 + 2 + i % 2]);
  over_keys(s, most, thread, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    most[i] = fmaxf(most[i], state.most[i]);
    factor[i] = exp2f(state.most[i] - most[i]);  // first tile: exp2(-inf) = 0
    state.most[i] = most[i];
    state.sum[i] *= factor[i];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = row + 8 * half, head = i / 2 * 8 + lane % 4 * 2 + i % 2;
      const float p = exp2f(x[i / 2 * 4 + 2 * half + i % 2] - most[i]);
      state.sum[i] += p;
      *reinterpret_cast<bf16*>(s.p + tile_offset(head, key / 8) + key % 8 * 2) = __float2bfloat16(p);
    }
  }
}

__device__ void consume(Shared& s, const Arguments& a, int64_t t, int group, int count, int thread) {
  const int tiles = (count + kKeys - 1) / kKeys, lane = thread % 32;
  float out[kBlocks][8] = {};
  Softmax state;
  barrier_wait(&s.q_full, 0);
  for (int tile = 0; tile < tiles; ++tile) {
    int stage = 2 * tile % kStages;
    barrier_wait(&s.full[stage], 2 * tile / kStages & 1);
    float x[8], factor[4];
    pin(x);
    wgmma_begin();
#pragma unroll
    for (int kk = 0; kk < kDims / 16; ++kk)
      wgmma_n16<0, 0>(x, row_descriptor(shared_address(s.rows[stage][kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.q[kk / 4])) + kk % 4 * 2, kk != 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(x);
    barrier_arrive(&s.empty[stage]);
    probabilities(s, state, x, factor, count - tile * kKeys, a.scale_log2, thread);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < 8; ++i) out[b][i] *= factor[i / 4 * 2 + i % 2];
    fence_to_async();
    named_sync(1, kGroup);
    stage = (2 * tile + 1) % kStages;
    barrier_wait(&s.full[stage], (2 * tile + 1) / kStages & 1);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) pin(out[b]);
    wgmma_begin();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int kk = 0; kk < kKeys / 16; ++kk)
        wgmma_n16<1, 0>(out[b], column_descriptor(shared_address(s.rows[stage][b])) + kk * 128, row_descriptor(shared_address(s.p)) + kk * 2, 1);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) pin(out[b]);
    barrier_arrive(&s.empty[stage]);
  }
  over_keys(s, state.sum, thread, [](float x, float y) { return x + y; });
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = i / 2 * 8 + lane % 4 * 2 + i % 2;
    if (head >= a.heads) continue;
    const int64_t row = (t * a.groups + group) * a.heads + head;
    if (thread < 4) a.lse[row] = state.most[i] * 0.6931471805599453f + logf(state.sum[i]);
    bf16* to = a.out + row * kDims + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half) to[b * 64 + 8 * half] = __float2bfloat16(out[b][i / 2 * 4 + 2 * half + i % 2] / state.sum[i]);
  }
}

__global__ void __launch_bounds__(kThreads, 2) forward(const Arguments a) {
  extern __shared__ unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x), group = static_cast<int>(blockIdx.x) % a.groups;
  const int64_t t = blockIdx.x / a.groups;
  const int count = a.tokens.count(t);
  if (count == 0) {
    const int64_t row = (t * a.groups + group) * a.heads;
    for (int i = thread; i < a.heads * kDims; i += kThreads) a.out[row * kDims + i] = __float2bfloat16(0.f);
    if (thread < a.heads) a.lse[row + thread] = -INFINITY;
    return;
  }
  if (thread == 0) {
    barrier_init(&s.q_full, kGroup);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], kGroup);
      barrier_init(&s.empty[i], kGroup);
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (thread < kGroup) produce(s, a, t, group, count, thread);
  else consume(s, a, t, group, count, thread - kGroup);
}

}  // namespace

void block_attention_forward_hopper(const BlockAttentionForward& f) {
  constexpr size_t kShared = sizeof(Shared) + 1024;
  static_assert(2 * (kShared + 1024) <= 228 * 1024, "two blocks per multiprocessor");
  const int groups = static_cast<int>(f.k.size(1));
  const Arguments a{f.q.data<bf16>(), f.k.data<bf16>(), f.v.data<bf16>(), AttendedTokens(f.blocks), f.out.data<bf16>(), f.lse.f32(), groups,
                    static_cast<int>(f.q.size(1)) / groups, f.scale * kLog2E};
  check_cuda(cudaFuncSetAttribute(forward, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)), "shared memory of block_attention_forward");
  forward<<<static_cast<unsigned>(f.q.size(0) * groups), kThreads, kShared, stream_of(f.stream)>>>(a);
  check_launch("block_attention_forward_hopper");
}

}  // namespace hyscale
