// First half of the index loss on Hopper: loss, dq and dweights of each query in one walk over its selected keys, 64 at a time; one
// block per query. A producer warpgroup gathers rows; a consumer warpgroup for every 32 heads multiplies. With X = K Q^T (keys are
// M, heads are N):
//   score[j] = sum_h w[h] relu(X[j, h]), r[j] = exp(score[j] - top) / Z, p[j] = head_sum[j] / teacher
//   dq[h] = grad_scale w[h] sum_j (r[j] - p[j]) [X[j, h] > 0] key[j]
//   dw[h] = grad_scale sum_j (r[j] - p[j]) relu(X[j, h])
// Z is known behind the last key only. The walk keeps, of what it has seen, an estimate z of 1 / Z and the sums
//   E[h] = sum_j exp(score[j] - top) [X > 0] key[j]   and   A[h] = sum_j (z exp(score[j] - top) - p[j]) [X > 0] key[j];
// where z changes, A changes by E times that. So the products round differences of r and p, not r and p, to bf16.
// What index_loss_keys.cu needs for dkeys stays in memory: G[j] = grad_scale (r[j] - p[j]) and the signs of X.
#include "kernels/common/hopper.cuh"
#include "kernels/common/op.h"
#include "kernels/index_loss/index_loss_cuda.h"

namespace hyscale {
namespace {

using namespace hopper;
using bf16 = __nv_bfloat16;
constexpr int kGroup = 128, kKeys = 64, kDims = 128, kBlocks = kDims / 64, kPartHeads = 32, kStages = 3, kAhead = kStages - 1;

template <int kParts>
struct Shared {
  alignas(1024) unsigned char q[kBlocks][kParts * kPartHeads * 128];
  alignas(1024) unsigned char keys[kStages][kBlocks][kTileBytes];
  alignas(1024) unsigned char c[kParts][kTileBytes];  // [keys][E of 32 heads, A of 32 heads]; in the end dq [32 heads][dims]
  float weights[kParts * kPartHeads];
  float partial[2][kParts][kKeys];  // scores of even and odd tiles over a part's heads
  float dweights[kParts][4][2][kPartHeads];
  float sums[2][kParts * 4];  // of warps
  uint64_t full[kStages], empty[kStages];
  float scores[];  // [k, up to a multiple of kKeys]
};
__host__ __device__ inline int padded(int k) { return (k + kKeys - 1) / kKeys * kKeys; }

enum Barrier { kAll = 1, kPart };  // kPart: one for each part

template <int kParts>
__device__ void produce(Shared<kParts>& s, const IndexLossArguments& a, int64_t t, int count, int thread) {
  const int tiles = (count + kKeys - 1) / kKeys, lane = thread % 32, first_row = thread / 32 * 16, piece = lane % 16;
  const int32_t* indices = a.indices + t * a.k;
  const auto id_of = [&](int tile) {
    const int slot = tile * kKeys + first_row + piece;
    return slot < count ? __ldg(indices + slot) : -1;
  };
  const auto publish = [&](int tile) {
    fence_to_async();
    barrier_arrive(&s.full[tile % kStages]);
  };
  int32_t next = id_of(0);
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % kStages;
    const int32_t own = next;
    next = id_of(tile + 1);
    if (tile >= kStages) barrier_wait(&s.empty[stage], (tile / kStages - 1) & 1);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const int row = 2 * r + lane / 16;
      const int32_t id = __shfl_sync(~0u, own, row);
      copy16(shared_address(s.keys[stage][piece / 8]) + tile_offset(first_row + row, piece % 8), a.keys + max(id, 0) * a.keys_stride + piece * 8, id >= 0);
    }
    copies_commit();
    if (tile < kAhead) continue;
    copies_wait<kAhead>();
    publish(tile - kAhead);
  }
  copies_done();
  for (int tile = max(0, tiles - kAhead); tile < tiles; ++tile) publish(tile);
}

__device__ __forceinline__ float over_warp(float x) {
  for (int offset = 16; offset; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

// Sum over the consumers, the same in all; `sums` is not in use elsewhere until the next barrier of all.
template <int kParts>
__device__ __forceinline__ float over_consumers(float x, float (&sums)[kParts * 4], int thread) {
  x = over_warp(x);
  if (thread % 32 == 0) sums[thread / 32] = x;
  named_sync(kAll, kParts * kGroup);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kParts * 4; ++i) sum += sums[i];
  return sum;
}

// X of a tile for the heads of a part, on its way.
template <int kParts>
__device__ __forceinline__ void begin_products(Shared<kParts>& s, int stage, int part, float (&x)[16]) {
#pragma unroll
  for (int kk = 0; kk < kDims / 16; ++kk)
    wgmma_n32<0, 0>(x, row_descriptor(shared_address(s.keys[stage][kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.q[kk / 4]) + part * kPartHeads * 128) + kk % 4 * 2,
                    kk != 0);
}

// What the walk knows of the softmax so far.
struct Seen {
  float top = -INFINITY, sum = 0, inverse = 0;  // of scores; of exp(score - top); the estimate z
};

template <int kParts>
__device__ void consume(Shared<kParts>& s, const IndexLossArguments& a, int64_t t, int count, int thread) {
  const int tiles = (count + kKeys - 1) / kKeys, part = thread / kGroup, warp = thread / 32 % 4, lane = thread % 32;
  const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
  const float *head_sum = a.head_sum + t * a.k, *weights = s.weights + part * kPartHeads + column;
  unsigned char* coefficients = s.c[part];
  const auto await = [&](int tile) { barrier_wait(&s.full[tile % kStages], tile / kStages & 1); };
  float of_teacher = 0;
  for (int j = thread; j < count; j += kParts * kGroup) of_teacher += head_sum[j];
  const float teacher = over_consumers<kParts>(of_teacher, s.sums[0], thread);
  Seen seen;
  float x[16], sums[kBlocks][32] = {};  // columns: E, then A
  float dw_student[8] = {}, dw_teacher[8] = {};
  await(0);
  pin(x);
  wgmma_begin();
  begin_products(s, 0, part, x);
  wgmma_commit();
  wgmma_wait<0>();
  pin(x);
  for (int tile = 0; tile < tiles; ++tile) {
    float p[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = tile * kKeys + row + 8 * half;
      p[half] = slot < count ? __ldg(head_sum + slot) / teacher : 0.f;
      float score = 0;
      uint32_t signs = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float product = x[i / 2 * 4 + 2 * half + i % 2];
        score = fmaf(fmaxf(product, 0.f), weights[i / 2 * 8 + i % 2], score);
        signs |= product > 0 ? 1u << i : 0u;
      }
      if (slot < count) a.signs[((static_cast<int64_t>(blockIdx.x) * a.k + slot) * kParts + part) * 4 + lane % 4] = static_cast<uint8_t>(signs);
      score += __shfl_xor_sync(~0u, score, 1);
      score += __shfl_xor_sync(~0u, score, 2);
      if (lane % 4 == 0) s.partial[tile & 1][part][row + 8 * half] = score;
    }
    named_sync(kAll, kParts * kGroup);
    // Every warp knows the scores of the whole tile: a lane those of two keys.
    float exponentials[2], top = seen.top;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = lane + 32 * i;
      float score = 0;
#pragma unroll
      for (int n = 0; n < kParts; ++n) score += s.partial[tile & 1][n][key];
      if (tile * kKeys + key >= count) score = -INFINITY;
      if (thread < 32) s.scores[tile * kKeys + key] = score;
      exponentials[i] = score;
      top = fmaxf(top, score);
    }
    for (int offset = 16; offset; offset /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
#pragma unroll
    for (int i = 0; i < 2; ++i) exponentials[i] = __expf(exponentials[i] - top);
    const float shrink = __expf(seen.top - top), sum = fmaf(seen.sum, shrink, over_warp(exponentials[0] + exponentials[1]));
    const float inverse = static_cast<float>(min(count, (tile + 1) * kKeys)) / static_cast<float>(count) / sum, more = inverse * shrink - seen.inverse;
    seen = {top, sum, inverse};
#pragma unroll
    for (int i = 0; i < 8; ++i) dw_student[i] *= shrink;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = row + 8 * half;
      const float e = __shfl_sync(~0u, warp < 2 ? exponentials[0] : exponentials[1], key % 32), both = e * inverse - p[half];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float first = x[4 * j + 2 * half], second = x[4 * j + 2 * half + 1];
        const float relu[2] = {fmaxf(first, 0.f), fmaxf(second, 0.f)};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          dw_student[2 * j + n] = fmaf(e, relu[n], dw_student[2 * j + n]);
          dw_teacher[2 * j + n] = fmaf(p[half], relu[n], dw_teacher[2 * j + n]);
        }
        *reinterpret_cast<__nv_bfloat162*>(coefficients + tile_offset(key, j) + lane % 4 * 4) = __floats2bfloat162_rn(first > 0 ? e : 0.f, second > 0 ? e : 0.f);
        *reinterpret_cast<__nv_bfloat162*>(coefficients + tile_offset(key, j + 4) + lane % 4 * 4) = __floats2bfloat162_rn(first > 0 ? both : 0.f, second > 0 ? both : 0.f);
      }
    }
    fence_to_async();
    named_sync(kPart + part, kGroup);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        sums[b][16 + i] = fmaf(more, sums[b][i], sums[b][16 + i]);
        sums[b][i] *= shrink;
      }
      pin(sums[b]);
    }
    const bool last = tile + 1 == tiles;
    if (!last) await(tile + 1);
    pin(x);
    wgmma_begin();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int kk = 0; kk < kKeys / 16; ++kk)
        wgmma_n64<1, 1>(sums[b], column_descriptor(shared_address(s.keys[tile % kStages][b])) + kk * 128, column_descriptor(shared_address(coefficients)) + kk * 128, 1);
    begin_products(s, (last ? tile : tile + 1) % kStages, part, x);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) pin(sums[b]);
    pin(x);
    barrier_arrive(&s.empty[tile % kStages]);
  }

  // dq, through shared memory to whole lines.
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int head = i / 4 * 8 + column + i % 2, dim = b * 64 + row + i / 2 % 2 * 8;
      reinterpret_cast<bf16*>(coefficients)[head * kDims + dim] = __float2bfloat16(a.grad_scale * s.weights[part * kPartHeads + head] * sums[b][16 + i]);
    }
  named_sync(kPart + part, kGroup);
  uint4* dq = reinterpret_cast<uint4*>(a.dq + (t * kParts + part) * kPartHeads * kDims);
  for (int i = thread % kGroup; i < kPartHeads * kDims / 8; i += kGroup) dq[i] = reinterpret_cast<const uint4*>(coefficients)[i];

  const float lse = seen.top + logf(seen.sum);
  float loss = 0;
  named_sync(kAll, kParts * kGroup);  // scores of the last tile
  for (int j = thread; j < count; j += kParts * kGroup) {
    const float p = head_sum[j] / teacher, log_r = s.scores[j] - lse;
    if (p > 0) loss += p * (logf(p) - log_r);
    a.gradients[static_cast<int64_t>(blockIdx.x) * a.k + j] = a.grad_scale * (expf(log_r) - p);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    for (int offset = 4; offset < 32; offset *= 2) {
      dw_student[i] += __shfl_xor_sync(~0u, dw_student[i], offset);
      dw_teacher[i] += __shfl_xor_sync(~0u, dw_teacher[i], offset);
    }
    const int head = column + i / 2 * 8 + i % 2;
    if (lane < 4) s.dweights[part][warp][0][head] = dw_student[i], s.dweights[part][warp][1][head] = dw_teacher[i];
  }
  loss = over_consumers<kParts>(loss, s.sums[1], thread);
  if (thread == 0) a.losses[t] = loss;
  if (!a.dweights || thread >= kParts * kPartHeads) return;
  float student = 0, teachers = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) student += s.dweights[thread / kPartHeads][w][0][thread % kPartHeads], teachers += s.dweights[thread / kPartHeads][w][1][thread % kPartHeads];
  a.dweights[t * kParts * kPartHeads + thread] = a.grad_scale * (student / seen.sum - teachers);
}

template <int kParts>
__global__ void __launch_bounds__((kParts + 1) * kGroup, kParts == 1 ? 2 : 1) one_query(const IndexLossArguments a, int64_t first) {
  extern __shared__ unsigned char raw[];
  Shared<kParts>& s = *reinterpret_cast<Shared<kParts>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  constexpr int kThreads = (kParts + 1) * kGroup, kHeads = kParts * kPartHeads;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t t = first + blockIdx.x;
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
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], kGroup);
      barrier_init(&s.empty[i], kParts * kGroup);
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  copies_done();
  fence_to_async();
  __syncthreads();
  if (thread < kGroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    produce(s, a, t, count, thread);
  } else {
    if constexpr (kParts == 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    consume(s, a, t, count, thread - kGroup);
  }
}

template <int kParts>
void launch(const IndexLossArguments& a, int64_t first, int64_t last, cudaStream_t stream) {
  const size_t shared = sizeof(Shared<kParts>) + 1024 + static_cast<size_t>(padded(a.k)) * sizeof(float);
  const cudaError_t status = cudaFuncSetAttribute(one_query<kParts>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  HYSCALE_CHECK(status == cudaSuccess, "index loss needs ", shared, " bytes of shared memory: ", cudaGetErrorString(status));
  one_query<kParts><<<static_cast<unsigned>(last - first), (kParts + 1) * kGroup, shared, stream>>>(a, first);
}

}  // namespace

void index_loss_queries(const IndexLossArguments& a, int64_t first, int64_t last, cudaStream_t stream) {
  a.heads == kPartHeads ? launch<1>(a, first, last, stream) : launch<2>(a, first, last, stream);
}

}  // namespace hyscale
