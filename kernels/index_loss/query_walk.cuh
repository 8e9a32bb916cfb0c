// First half of the index loss (index_loss_two_halves.cu): loss, dq and dweights of a query in one walk over its selected keys, 64 at a time,
// by one block. A producer warpgroup gathers rows; a consumer warpgroup for every 32 heads multiplies. With X = K Q^T (keys are M,
// heads are N):
//   score[j] = sum_h w[h] relu(X[j, h]), r[j] = exp(score[j] - top) / Z, p[j] = head_sum[j] / teacher
//   dq[h] = grad_scale w[h] sum_j (r[j] - p[j]) [X[j, h] > 0] key[j]
//   dw[h] = grad_scale sum_j (r[j] - p[j]) relu(X[j, h])
// Z is known behind the last key only. The walk keeps, of what it has seen, an estimate z of 1 / Z and the sums
//   E[h] = sum_j exp(score[j] - top) [X > 0] key[j]   and   A[h] = sum_j (z exp(score[j] - top) - p[j]) [X > 0] key[j];
// where z changes, A changes by E times that. So the products round differences of r and p, not r and p, to bf16. z is the
// teacher's mass over the student's exponentials: the better the student, the less A changes and the smaller are its differences.
// What the second half (united_rows.cuh) needs for dkeys stays in memory: G[j] = grad_scale (r[j] - p[j]) and the signs of X.
#pragma once
#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"
#include "kernels/index_loss/index_loss_cuda.h"

namespace hyscale::index_halves {

using namespace hopper;
constexpr int kGroup = 128, kDims = 128, kBlocks = kDims / 64;
constexpr int kKeys = 64, kPartHeads = 32, kStages = 4, kAhead = kStages - 2;

// Queries of a launch, and what the first half leaves of them to the second.
struct Queries {
  int64_t first, last;
  float* gradients;  // of scores [last - first, k]
  uint8_t* signs;    // of products [last - first, k, heads / 32, 4]: bit 4 e + j of byte c: head 8 j + 2 c + e of 32 has a positive one
};

template <int kParts>
struct WalkShared {
  alignas(1024) unsigned char q[kBlocks][kParts * kPartHeads * 128];
  alignas(1024) unsigned char keys[kStages][kBlocks][kTileBytes];
  alignas(1024) unsigned char c[kParts][kTileBytes];  // [keys][E of 32 heads, A of 32 heads]; in the end dq [32 heads][dims]
  float weights[kParts * kPartHeads];
  float partial[2][kParts][kKeys];  // scores of even and odd tiles over a part's heads
  float dweights[kParts][4][kPartHeads];  // of warps
  float sums[2][kParts * 4];  // of warps
  uint64_t full[kStages], empty[kStages];
  float scores[];  // [k, up to a multiple of kKeys]
};
template <int kParts>
size_t walk_shared_bytes(int k) { return sizeof(WalkShared<kParts>) + static_cast<size_t>((k + kKeys - 1) / kKeys * kKeys) * sizeof(float); }

enum Barrier { kAll = 1, kPart };  // kPart: one for each part

template <int kParts>
__device__ void produce(WalkShared<kParts>& s, const IndexLossArguments& a, int64_t t, int count, int thread) {
  const int tiles = (count + kKeys - 1) / kKeys, lane = thread % 32, first_row = thread / 32 * 16, piece = lane % 16;
  const int32_t* indices = a.indices + t * a.k;
  const char* keys = reinterpret_cast<const char*>(a.keys + piece * 8);
  const uint32_t stride = static_cast<uint32_t>(a.keys_stride * sizeof(bf16));
  const auto id_of = [&](int tile) {
    const int slot = tile * kKeys + first_row + piece;
    return slot < count ? __ldg(indices + slot) : 0;
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
      const uint32_t id = static_cast<uint32_t>(__shfl_sync(~0u, own, row));
      copy16(shared_address(s.keys[stage][piece / 8]) + tile_offset(first_row + row, piece % 8), keys + static_cast<uint64_t>(id) * stride, tile * kKeys + first_row + row < count);
    }
    copies_commit();
    if (tile < kAhead) continue;
    copies_wait<kAhead>();
    publish(tile - kAhead);
  }
  copies_done();
  for (int tile = max(0, tiles - kAhead); tile < tiles; ++tile) publish(tile);
}

// Sum over the consumers, the same in all; `sums` is not in use elsewhere until the next barrier of all.
template <int kParts>
__device__ __forceinline__ float over_consumers(float x, float (&sums)[kParts * 4], int thread) {
  x = warp_sum(x);
  if (thread % 32 == 0) sums[thread / 32] = x;
  named_sync(kAll, kParts * kGroup);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kParts * 4; ++i) sum += sums[i];
  return sum;
}

// X of a tile for the heads of a part, on its way.
template <int kParts>
__device__ __forceinline__ void begin_products(WalkShared<kParts>& s, int stage, int part, float (&x)[16]) {
#pragma unroll
  for (int kk = 0; kk < kDims / 16; ++kk)
    wgmma_n32<0, 0>(x, row_descriptor(shared_address(s.keys[stage][kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.q[kk / 4]) + part * kPartHeads * 128) + kk % 4 * 2,
                    kk != 0);
}

__device__ __forceinline__ uint32_t twice(float x) {
  const __nv_bfloat162 both = __float2bfloat162_rn(x);
  return reinterpret_cast<const uint32_t&>(both);
}

// What the walk knows of the softmax so far.
struct Seen {
  float top = -INFINITY, sum = 0, mass = 0, inverse = 0;  // of scores; of exp(score - top); of p; the estimate z
};

template <int kParts>
__device__ void consume(WalkShared<kParts>& s, const IndexLossArguments& a, const Queries& queries, int64_t t, int count, int thread) {
  const int tiles = (count + kKeys - 1) / kKeys, part = thread / kGroup, warp = thread / 32 % 4, lane = thread % 32;
  const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
  const float *head_sum = a.head_sum + t * a.k, *weights = s.weights + part * kPartHeads + column;
  float* gradients = queries.gradients + (t - queries.first) * a.k;
  uint8_t* signs_of = queries.signs + (t - queries.first) * a.k * kParts * 4;
  unsigned char* coefficients = s.c[part];
  const auto await = [&](int tile) { barrier_wait(&s.full[tile % kStages], tile / kStages & 1); };
  float of_teacher = 0;
  for (int j = thread; j < count; j += kParts * kGroup) of_teacher += head_sum[j];
  const float teacher = over_consumers<kParts>(of_teacher, s.sums[0], thread), to_p = 1 / teacher;
  Seen seen;
  float x[16], sums[kBlocks][32] = {};  // columns: E, then A
  float dw_student[8] = {}, dw[8] = {};  // of relu(X) instead of [X > 0] key, likewise
  await(0);
  pin(x);
  wgmma_begin();
  begin_products(s, 0, part, x);
  wgmma_commit();
  wgmma_wait<0>();
  pin(x);
  for (int tile = 0; tile < tiles; ++tile) {
    // Every warp knows scores and p of the whole tile: a lane those of the keys `lane` and `lane + 32`.
    float exponentials[2], masses[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int slot = tile * kKeys + lane + 32 * i;
      masses[i] = slot < count ? __ldg(head_sum + slot) * to_p : 0.f;
    }
    uint32_t positive[8];  // of pairs of heads: which products are
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = tile * kKeys + row + 8 * half;
      float score = 0;
      uint32_t signs = 0;  // of first heads from bit 0 on, of second ones from bit 16 on
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float (&pair)[2] = reinterpret_cast<float (&)[2]>(x[4 * j + 2 * half]);
        positive[2 * j + half] = __hgt2_mask(__floats2bfloat162_rn(pair[0], pair[1]), __floats2bfloat162_rn(0.f, 0.f));
        signs |= positive[2 * j + half] & 0x00010001u << j;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          pair[e] = fmaxf(pair[e], 0.f);
          score = fmaf(pair[e], weights[8 * j + e], score);
        }
      }
      if (slot < count) signs_of[(slot * kParts + part) * 4 + lane % 4] = static_cast<uint8_t>(signs | signs >> 12);
      score += __shfl_xor_sync(~0u, score, 1);
      score += __shfl_xor_sync(~0u, score, 2);
      if (lane % 4 == 0) s.partial[tile & 1][part][row + 8 * half] = score;
    }
    named_sync(kAll, kParts * kGroup);
    float top = seen.top;
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
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < 2; ++i) exponentials[i] = __expf(exponentials[i] - top);
    const float shrink = __expf(seen.top - top), sum = fmaf(seen.sum, shrink, warp_sum(exponentials[0] + exponentials[1]));
    const float mass = seen.mass + warp_sum(masses[0] + masses[1]);
    const bool last = tile + 1 == tiles;
    float inverse = __fdividef(last ? 1.f : mass, sum);
    const bool moves = last || !(fabsf(inverse * shrink - seen.inverse) <= 0.0625f * seen.inverse);  // else it may stay where it is
    if (!moves && top == seen.top) inverse = seen.inverse;
    const float more = inverse * shrink - seen.inverse;
    const bool changes = moves || top != seen.top;
    seen = {top, sum, mass, inverse};
    if (changes)
#pragma unroll
      for (int i = 0; i < 8; ++i) dw[i] = fmaf(more, dw_student[i], dw[i]), dw_student[i] *= shrink;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = row + 8 * half;
      const float e = __shfl_sync(~0u, warp < 2 ? exponentials[0] : exponentials[1], key % 32), p = __shfl_sync(~0u, warp < 2 ? masses[0] : masses[1], key % 32);
      const float both = e * inverse - p;
      const uint32_t of_student = twice(e), of_both = twice(both);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float relu = x[4 * j + 2 * half + n];
          dw_student[2 * j + n] = fmaf(e, relu, dw_student[2 * j + n]);
          dw[2 * j + n] = fmaf(both, relu, dw[2 * j + n]);
        }
        *reinterpret_cast<uint32_t*>(coefficients + tile_offset(key, j) + lane % 4 * 4) = of_student & positive[2 * j + half];
        *reinterpret_cast<uint32_t*>(coefficients + tile_offset(key, j + 4) + lane % 4 * 4) = of_both & positive[2 * j + half];
      }
    }
    fence_to_async();
    named_sync(kPart + part, kGroup);
    if (changes)
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          sums[b][16 + i] = fmaf(more, sums[b][i], sums[b][16 + i]);
          sums[b][i] *= shrink;
        }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) pin(sums[b]);
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

  named_sync(kAll, kParts * kGroup);  // all products are done, all scores written
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
  for (int j = thread; j < count; j += kParts * kGroup) {
    const float p = head_sum[j] / teacher, log_r = s.scores[j] - lse;
    if (p > 0) loss += p * (logf(p) - log_r);
    gradients[j] = a.grad_scale * (expf(log_r) - p);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    for (int offset = 4; offset < 32; offset *= 2) dw[i] += __shfl_xor_sync(~0u, dw[i], offset);
    if (lane < 4) s.dweights[part][warp][column + i / 2 * 8 + i % 2] = dw[i];
  }
  loss = over_consumers<kParts>(loss, s.sums[1], thread);
  if (thread == 0) a.losses[t] = loss;
  if (!a.dweights || thread >= kParts * kPartHeads) return;
  const float (&of_warps)[4][kPartHeads] = s.dweights[thread / kPartHeads];
  const int head = thread % kPartHeads;
  a.dweights[t * kParts * kPartHeads + thread] = a.grad_scale * (of_warps[0][head] + of_warps[1][head] + (of_warps[2][head] + of_warps[3][head]));
}

template <int kParts>
__device__ __forceinline__ void walk_query(unsigned char* raw, const IndexLossArguments& a, const Queries& queries, int64_t t) {
  WalkShared<kParts>& s = *reinterpret_cast<WalkShared<kParts>*>(raw);
  constexpr int kThreads = (kParts + 1) * kGroup, kHeads = kParts * kPartHeads;
  const int thread = static_cast<int>(threadIdx.x);
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
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    produce(s, a, t, count, thread);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    consume(s, a, queries, t, count, thread - kGroup);
  }
}

}  // namespace hyscale::index_halves
