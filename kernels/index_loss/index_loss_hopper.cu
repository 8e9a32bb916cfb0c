// Index loss on Hopper: one block per query, 64 selected keys at a time. A producer warpgroup gathers key rows; the other
// goes over them twice. With X = K Q^T (keys are M, heads are N):
//   first   score[j] = sum_h w[h] relu(X[j, h]); behind the last key the scores become G = grad_scale (r - p)
//   second  X again, C[j, h] = G[j] w[h] [X > 0] in bf16, dq += C^T K, dkeys(row j) = C Q, dw[h] += G[j] relu(X[j, h])
// dq stays in registers; rows of dkeys are summed over heads before they leave the chip. Products are issued ahead of what is
// done with the previous ones: their latency is most of the time.
#include "kernels/common/hopper.cuh"
#include "kernels/common/op.h"
#include "kernels/index_loss/index_loss_cuda.h"

namespace hyscale {
namespace {

using namespace hopper;
using bf16 = __nv_bfloat16;
constexpr int kGroup = 128, kThreads = 2 * kGroup, kKeys = 64, kDims = 128, kBlocks = kDims / 64, kStages = 4, kAhead = kStages - 2;

template <int kHeads>
struct Shared {
  alignas(1024) unsigned char q[kBlocks][kHeads * 128];
  alignas(1024) unsigned char keys[kStages][kBlocks][kTileBytes];
  alignas(1024) unsigned char c[2][kTileBytes];  // [keys][heads] of even and odd tiles, the second half zero for 32 heads
  float weights[kHeads];
  float dweights[4][kHeads];  // of each warp
  float parts[3][4];          // of sums over the block
  uint64_t full[kStages], empty[kStages];
  float scores[];  // [k, up to a multiple of kKeys]; behind them as many ids, -1 beyond the count
};
__host__ __device__ inline int padded(int k) { return (k + kKeys - 1) / kKeys * kKeys; }

template <int kHeads>
__device__ void produce(Shared<kHeads>& s, const IndexLossArguments& a, const int32_t* ids, int count, int thread) {
  const int tiles = (count + kKeys - 1) / kKeys, piece = thread % 16, first_row = thread / 16 * 8;
  const auto publish = [&](int turn) {
    fence_to_async();
    barrier_arrive(&s.full[turn % kStages]);
  };
  for (int turn = 0; turn < 2 * tiles; ++turn) {
    const int stage = turn % kStages;
    const int4* of_rows = reinterpret_cast<const int4*>(ids + turn % tiles * kKeys + first_row);
    const int4 low = of_rows[0], high = of_rows[1];
    const int32_t of_row[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (turn >= kStages) barrier_wait(&s.empty[stage], (turn / kStages - 1) & 1);
#pragma unroll
    for (int r = 0; r < 8; ++r)
      copy16(shared_address(s.keys[stage][piece / 8]) + tile_offset(first_row + r, piece % 8), a.keys + max(of_row[r], 0) * a.keys_stride + piece * 8, of_row[r] >= 0);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (turn < kAhead) continue;
    asm volatile("cp.async.wait_group %0;" ::"n"(kAhead) : "memory");
    publish(turn - kAhead);
  }
  copies_done();
  for (int turn = max(0, 2 * tiles - kAhead); turn < 2 * tiles; ++turn) publish(turn);
}

// Sum (or maximum) of the 128 scoring threads' numbers, the same in all.
template <bool kMax = false>
__device__ __forceinline__ float group_sum(float x, float (&parts)[4], int thread) {
  for (int offset = 16; offset; offset /= 2) {
    const float other = __shfl_xor_sync(~0u, x, offset);
    x = kMax ? fmaxf(x, other) : x + other;
  }
  if (thread % 32 == 0) parts[thread / 32] = x;
  named_sync(1, kGroup);
  const float all = kMax ? fmaxf(fmaxf(parts[0], parts[1]), fmaxf(parts[2], parts[3])) : parts[0] + parts[1] + (parts[2] + parts[3]);
  named_sync(1, kGroup);
  return all;
}

// X of a stage, on its way.
template <int kHeads>
__device__ __forceinline__ void begin_products(Shared<kHeads>& s, int stage, float (&x)[kHeads / 2]) {
  pin(x);
  wgmma_begin();
#pragma unroll
  for (int kk = 0; kk < kDims / 16; ++kk) {
    const uint64_t keys = row_descriptor(shared_address(s.keys[stage][kk / 4])) + kk % 4 * 2, q = row_descriptor(shared_address(s.q[kk / 4])) + kk % 4 * 2;
    if constexpr (kHeads == 32) wgmma_n32<0, 0>(x, keys, q, kk != 0);
    else wgmma_n64<0, 0>(x, keys, q, kk != 0);
  }
  wgmma_commit();
}

// The scores of a tile.
template <int kHeads>
__device__ __forceinline__ void write_scores(Shared<kHeads>& s, int tile, const float (&x)[kHeads / 2], int thread) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float score = 0;
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) score = fmaf(fmaxf(x[4 * j + 2 * half + e], 0.f), s.weights[column + 8 * j + e], score);
    score += __shfl_xor_sync(~0u, score, 1);
    score += __shfl_xor_sync(~0u, score, 2);
    if (lane % 4 == 0) s.scores[tile * kKeys + row + 8 * half] = score;
  }
}

// Scores become the gradient; returns KL(p || r).
template <int kHeads>
__device__ float divergence(Shared<kHeads>& s, const IndexLossArguments& a, const float* head_sum, int count, int thread) {
  float teacher = 0, top = -INFINITY;
  for (int j = thread; j < count; j += kGroup) teacher += head_sum[j], top = fmaxf(top, s.scores[j]);
  teacher = group_sum(teacher, s.parts[0], thread);
  top = group_sum<true>(top, s.parts[1], thread);
  float student = 0, loss = 0;
  for (int j = thread; j < count; j += kGroup) student += expf(s.scores[j] - top);
  const float lse = top + logf(group_sum(student, s.parts[2], thread));
  for (int j = thread; j < count; j += kGroup) {
    const float p = head_sum[j] / teacher, log_r = s.scores[j] - lse;
    if (p > 0) loss += p * (logf(p) - log_r);
    s.scores[j] = a.grad_scale * (expf(log_r) - p);
  }
  return group_sum(loss, s.parts[0], thread);
}

template <int kHeads>
__device__ void consume(Shared<kHeads>& s, const IndexLossArguments& a, int count, int thread) {
  const int64_t t = blockIdx.x;
  const int tiles = (count + kKeys - 1) / kKeys, lane = thread % 32, warp = thread / 32, row = warp * 16 + lane / 4, column = lane % 4 * 2;
  const int32_t* ids = reinterpret_cast<const int32_t*>(s.scores + padded(a.k));
  const auto await = [&](int turn) { barrier_wait(&s.full[turn % kStages], turn / kStages & 1); };
  for (int tile = 0; tile < tiles; tile += 2) {  // two at a time, scores under the products of the second
    const bool two = tile + 1 < tiles;
    float x[2][kHeads / 2];
    await(tile);
    if (two) await(tile + 1);
    begin_products(s, tile % kStages, x[0]);
    begin_products(s, (two ? tile + 1 : tile) % kStages, x[1]);
    wgmma_wait<1>();
    pin(x[0]);
    write_scores(s, tile, x[0], thread);
    wgmma_wait<0>();
    pin(x[1]);
    barrier_arrive(&s.empty[tile % kStages]);
    if (!two) break;
    barrier_arrive(&s.empty[(tile + 1) % kStages]);
    write_scores(s, tile + 1, x[1], thread);
  }
  named_sync(1, kGroup);
  const float loss = divergence(s, a, a.head_sum + t * a.k, count, thread);
  if (thread == 0) a.losses[t] = loss;
  for (int j = count + thread; j < tiles * kKeys; j += kGroup) s.scores[j] = 0;
  named_sync(1, kGroup);

  float dq[kBlocks][32] = {}, dweights[kHeads / 4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    const int turn = tiles + tile, stage = turn % kStages;
    unsigned char* coefficients = s.c[tile & 1];
    {
      float x[kHeads / 2];
      await(turn);
      begin_products(s, stage, x);
      wgmma_wait<0>();
      pin(x);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = row + 8 * half;
        const float g = s.scores[tile * kKeys + key];
#pragma unroll
        for (int j = 0; j < kHeads / 8; ++j) {
          float c[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float product = x[4 * j + 2 * half + e];
            c[e] = product > 0 ? g * s.weights[column + 8 * j + e] : 0.f;
            dweights[2 * j + e] = fmaf(g, fmaxf(product, 0.f), dweights[2 * j + e]);
          }
          *reinterpret_cast<__nv_bfloat162*>(coefficients + tile_offset(key, j) + lane % 4 * 4) = __floats2bfloat162_rn(c[0], c[1]);
        }
      }
    }
    fence_to_async();
    named_sync(1, kGroup);
    constexpr int kAtOnce = kHeads == 32 ? 2 : 1;  // blocks of dkeys that the registers hold
#pragma unroll
    for (int first = 0; first < kBlocks; first += kAtOnce) {
      const bool last = first + kAtOnce == kBlocks;
      float d[kAtOnce][32];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) pin(d[i]);
#pragma unroll
      for (int b = 0; last && b < kBlocks; ++b) pin(dq[b]);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int kk = 0; kk < kHeads / 16; ++kk)
          wgmma_n64<0, 1>(d[i], row_descriptor(shared_address(coefficients)) + kk * 2, column_descriptor(shared_address(s.q[first + i])) + kk * 128, kk != 0);
        wgmma_commit();
      }
#pragma unroll
      for (int b = 0; last && b < kBlocks; ++b)
#pragma unroll
        for (int kk = 0; kk < kKeys / 16; ++kk)
          wgmma_n64<1, 1>(dq[b], column_descriptor(shared_address(coefficients)) + kk * 128, column_descriptor(shared_address(s.keys[stage][b])) + kk * 128, 1);
      wgmma_commit();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (kAtOnce - i == 2) wgmma_wait<2>();
        else wgmma_wait<1>();
        pin(d[i]);
        add_rows(d[i], a.dkeys + (first + i) * 64, static_cast<uint32_t>(a.dkeys_stride), ids + tile * kKeys + warp * 16, lane);
      }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) pin(dq[b]);
    barrier_arrive(&s.empty[stage]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = row + 8 * half;
    if (head >= kHeads) continue;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int j = 0; j < 8; ++j)
        *reinterpret_cast<__nv_bfloat162*>(a.dq + (t * kHeads + head) * kDims + b * 64 + 8 * j + column) =
            __floats2bfloat162_rn(dq[b][4 * j + 2 * half], dq[b][4 * j + 2 * half + 1]);
  }
  if (!a.dweights) return;
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    for (int offset = 4; offset < 32; offset *= 2) dweights[i] += __shfl_xor_sync(~0u, dweights[i], offset);
    if (lane < 4) s.dweights[warp][column + 8 * (i / 2) + i % 2] = dweights[i];
  }
  named_sync(1, kGroup);
  if (thread < kHeads) a.dweights[t * kHeads + thread] = s.dweights[0][thread] + s.dweights[1][thread] + (s.dweights[2][thread] + s.dweights[3][thread]);
}

template <int kHeads>
__global__ void __launch_bounds__(kThreads, 2) one_query(const IndexLossArguments a) {
  extern __shared__ unsigned char raw[];
  Shared<kHeads>& s = *reinterpret_cast<Shared<kHeads>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t t = blockIdx.x;
  const int count = a.counts[t];
  if (count == 0) {
    for (int i = thread; i < kHeads * kDims; i += kThreads) a.dq[t * kHeads * kDims + i] = __float2bfloat16(0.f);
    if (a.dweights && thread < kHeads) a.dweights[t * kHeads + thread] = 0;
    if (thread == 0) a.losses[t] = 0;
    return;
  }
  for (int i = thread; i < kHeads * 16; i += kThreads)
    copy16(shared_address(s.q[i % 16 / 8]) + tile_offset(i / 16, i % 8), a.q + (t * kHeads + i / 16) * kDims + i % 16 * 8, true);
  if (thread < kHeads) s.weights[thread] = a.weights ? a.weights[t * kHeads + thread] : 1.f;
  for (int i = thread; i < 2 * kTileBytes / 4; i += kThreads) reinterpret_cast<uint32_t*>(s.c)[i] = 0;
  int32_t* ids = reinterpret_cast<int32_t*>(s.scores + padded(a.k));
  for (int i = thread; i < padded(count); i += kThreads) ids[i] = i < count ? a.indices[t * a.k + i] : -1;
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], kGroup);
      barrier_init(&s.empty[i], kGroup);
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  copies_done();
  fence_to_async();
  __syncthreads();
  if (thread < kGroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    produce(s, a, ids, count, thread);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    consume<kHeads>(s, a, count, thread - kGroup);
  }
}

template <int kHeads>
void launch(const IndexLossArguments& a, int64_t queries, cudaStream_t stream) {
  const size_t shared = sizeof(Shared<kHeads>) + 1024 + static_cast<size_t>(padded(a.k)) * (sizeof(float) + sizeof(int32_t));
  const cudaError_t status = cudaFuncSetAttribute(one_query<kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  HYSCALE_CHECK(status == cudaSuccess, "index loss needs ", shared, " bytes of shared memory: ", cudaGetErrorString(status));
  one_query<kHeads><<<static_cast<unsigned>(queries), kThreads, shared, stream>>>(a);
}

}  // namespace

void index_loss_hopper(const IndexLossArguments& a, int64_t queries, cudaStream_t stream) {
  (a.heads == 32 ? launch<32> : launch<64>)(a, queries, stream);
}

}  // namespace hyscale
