// Sparse attention backward on Hopper for rows of 576 numbers with values of 512 (GLM's latent rows) and of 512 that are keys
// and values at once (DeepSeek-V4's): one block per query, at most 64 heads (padded), 64 selected
// rows at a time. With X^T = K Q^T and dP^T = V dO^T (keys are M; each of two warpgroups takes half of the heads):
//   P = exp(scale X - lse), dX = scale P (dP - delta), delta[h] = dout[h] . out[h]
//   dq += dX K     d(row) = dX^T Q, and P^T dO in its first Dv columns
// dq stays in registers. Contributions to a row are summed over all heads before they leave the chip; they are added to dkv by reductions, or stored
// to be added row by row (row_contributions.h). The next rows are gathered as soon as dq has used the current ones, under the products of dkv.
#include <cuda_runtime.h>

#include "kernels/common/hopper.cuh"
#include "kernels/common/row_contributions.h"
#include "kernels/sparse_attention/row_gather.cuh"
#include "kernels/sparse_attention/sparse_attention_cuda.h"

namespace hyscale {
namespace {

using namespace hopper;
using bf16 = __nv_bfloat16;
constexpr int kThreads = 384, kMath = 256, kGroup = 128;
constexpr int kKeys = 64, kHeads = 64, kDv = 512, kValueBlocks = kDv / 64;

template <int kDk>
struct Shared {
  static constexpr int kBlocks = kDk / 64;
  alignas(1024) unsigned char q[kBlocks][kTileBytes];
  alignas(1024) unsigned char dout[kValueBlocks][kTileBytes];
  alignas(1024) unsigned char kv[kBlocks][kTileBytes];
  alignas(1024) unsigned char p[kTileBytes];   // [keys][heads]
  alignas(1024) unsigned char dx[kTileBytes];  // [keys][heads]
  float lse[kHeads], delta[kHeads];            // lse in units of log2; +inf for padding, whose P is then 0
  float head_sum[2][kKeys];                    // one part per warpgroup
  int32_t ids[2][kKeys];
  uint64_t q_full, full, empty;
};

struct Arguments {
  const bf16 *q, *kv, *out, *dout;
  const int32_t *indices, *counts;
  const float* lse;
  bf16* dq;
  float *dkv, *head_sum;
  bf16* contributions;  // [queries, k, Dk] of the queries from `first` on, in place of additions to dkv
  int64_t first;
  int64_t kv_stride, dkv_stride;
  int heads, k;
  float scale;
};

enum Barrier { kReady = 1, kWritten, kConsumed };

__device__ void gather_heads(unsigned char (*to)[kTileBytes], const bf16* from, int width, int heads, int thread) {
  const int piece = thread % 8;
#pragma unroll 1
  for (int head = thread / 8; head < kHeads; head += 16)
#pragma unroll 1
    for (int b = 0; b < width / 64; ++b)
      copy16(shared_address(to[b]) + tile_offset(head, piece), from + min(head, heads - 1) * width + b * 64 + piece * 8, head < heads);
}

template <int kDk>
__device__ void produce(Shared<kDk>& s, const Arguments& a, int count, int thread) {
  const int64_t t = a.first + blockIdx.x;
  gather_heads(s.q, a.q + t * a.heads * kDk, kDk, a.heads, thread);
  gather_heads(s.dout, a.dout + t * a.heads * kDv, kDv, a.heads, thread);
  copies_done();
  fence_to_async();
  barrier_arrive(&s.q_full);
  const int tiles = (count + kKeys - 1) / kKeys;
  RowGather<kDk / 64> gather(a.kv, a.kv_stride, a.indices + t * a.k, count, thread);
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile > 0) barrier_wait(&s.empty, (tile - 1) & 1);
#pragma unroll
    for (int r = 0; r < 4; ++r)
      if (gather.piece == 0) s.ids[tile & 1][gather.first_row + 16 * r] = gather.ids[r];
    gather.fetch(s.kv);
    gather.load_ids(tile + 1);
    copies_done();
    fence_to_async();
    barrier_arrive(&s.full);
  }
}

// delta and lse of every head; 8 warps. All loads of a few heads are on their way at once: one after another they took a tenth of the kernel.
template <int kDk>
__device__ void load_statistics(Shared<kDk>& s, const Arguments& a, int thread) {
  constexpr int kAtOnce = 4, kPieces = kDv / 8 / 32;
  const int lane = thread % 32;
  const int64_t first = (a.first + blockIdx.x) * a.heads;
#pragma unroll 1
  for (int h0 = thread / 32 * 8; h0 < thread / 32 * 8 + 8; h0 += kAtOnce) {
    uint4 out[kAtOnce][kPieces], dout[kAtOnce][kPieces];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
        const int64_t at = (first + min(h0 + i, a.heads - 1)) * kDv + n * 256 + lane * 8;
        out[i][n] = __ldg(reinterpret_cast<const uint4*>(a.out + at));
        dout[i][n] = __ldg(reinterpret_cast<const uint4*>(a.dout + at));
      }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kPieces; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float2 x = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(&out[i][n])[e]);
          const float2 y = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(&dout[i][n])[e]);
          sum += x.x * y.x + x.y * y.y;
        }
      for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
      if (lane == 0) {
        s.delta[h0 + i] = sum;
        s.lse[h0 + i] = h0 + i < a.heads ? a.lse[first + h0 + i] * 1.4426950408889634f : INFINITY;
      }
    }
  }
}

// The thread's index in its warpgroup, read anew: what is derived from it is not kept in registers over the whole loop,
// where dq leaves too few.
__device__ __forceinline__ int thread_again() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x % kGroup;
}

// P and dX of the warpgroup's 32 heads for the 64 keys, to shared memory.
template <int kPart, int kDk>
__device__ __forceinline__ void score_gradients(Shared<kDk>& s, const Arguments& a, int visible) {
  const int thread = thread_again();
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4, column = kPart * 32 + lane % 4 * 2;
  float x[16], dp[16];
  pin(x);
  pin(dp);
  wgmma_begin();
#pragma unroll
  for (int kk = 0; kk < kDk / 16; ++kk)
    wgmma_n32<0, 0>(x, row_descriptor(shared_address(s.kv[kk / 4])) + kk % 4 * 2,
                    row_descriptor(shared_address(s.q[kk / 4]) + kPart * 4096) + kk % 4 * 2, kk != 0);
#pragma unroll
  for (int kk = 0; kk < kDv / 16; ++kk)
    wgmma_n32<0, 0>(dp, row_descriptor(shared_address(s.kv[kk / 4])) + kk % 4 * 2,
                    row_descriptor(shared_address(s.dout[kk / 4]) + kPart * 4096) + kk % 4 * 2, kk != 0);
  wgmma_commit();
  wgmma_wait<0>();
  pin(x);
  pin(dp);
  const float scale_log2 = a.scale * 1.4426950408889634f;
  float2 lse[4], delta[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) lse[j] = *reinterpret_cast<const float2*>(&s.lse[column + 8 * j]), delta[j] = *reinterpret_cast<const float2*>(&s.delta[column + 8 * j]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = row + 8 * half;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = 4 * j + 2 * half;
      const float p0 = key < visible ? exp2_approx(x[i] * scale_log2 - lse[j].x) : 0.f, p1 = key < visible ? exp2_approx(x[i + 1] * scale_log2 - lse[j].y) : 0.f;
      sum += p0 + p1;
      const uint32_t at = tile_offset(key, kPart * 4 + j) + lane % 4 * 4;
      *reinterpret_cast<__nv_bfloat162*>(s.p + at) = __floats2bfloat162_rn(p0, p1);
      *reinterpret_cast<__nv_bfloat162*>(s.dx + at) = __floats2bfloat162_rn(a.scale * p0 * (dp[i] - delta[j].x), a.scale * p1 * (dp[i + 1] - delta[j].y));
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) s.head_sum[kPart][key] = sum;
  }
}

// d(row) of the tile's rows in kColumns columns of a block, which values have as well if kValues: added to dkv, or stored as contributions of the query's slots.
template <int kColumns, bool kValues, int kDk, bool kStored>
__device__ __forceinline__ void give_columns(Shared<kDk>& s, const Arguments& a, int tile, int block, int first_column) {
  const int thread = thread_again(), lane = thread % 32, warp_row = thread / 32 * 16;
  float d[kColumns / 2];
  pin(d);
  wgmma_begin();
  const auto multiply = [&](const unsigned char* left, const unsigned char* right, bool add) {
#pragma unroll
    for (int kk = 0; kk < kHeads / 16; ++kk) {
      const uint64_t rows = row_descriptor(shared_address(left)) + kk * 2, columns = column_descriptor(shared_address(right) + first_column * 2) + kk * 128;
      if constexpr (kColumns == 64) wgmma_n64<0, 1>(d, rows, columns, add || kk != 0);
      else wgmma_n32<0, 1>(d, rows, columns, add || kk != 0);
    }
  };
  multiply(s.dx, s.q[block], false);
  if constexpr (kValues) multiply(s.p, s.dout[block], true);
  wgmma_commit();
  wgmma_wait<0>();
  pin(d);
  const int32_t* ids = s.ids[tile & 1] + warp_row;
  const int column = block * 64 + first_column;
  if constexpr (kStored) {
    bf16* to = a.contributions + (static_cast<int64_t>(blockIdx.x) * a.k + tile * kKeys + warp_row) * kDk + column;
    for_each_eight_rounded(d, lane, [&](int row, int at, uint4 x) {
      if (ids[row] >= 0) __stcs(reinterpret_cast<uint4*>(to + row * kDk + at), x);
    });
  } else {
    add_rows(d, a.dkv + column, static_cast<uint32_t>(a.dkv_stride), ids, lane);
  }
}

template <int kPart, int kDk, bool kStored>
__device__ void consume(Shared<kDk>& s, const Arguments& a, int count) {
  // Of dq and of dkv: four blocks of columns, and half of a ninth where there is one.
  constexpr int kFirst = kPart * 4, kTail = 8;
  constexpr bool kHasTail = kDk > kDv;
  const int64_t t = a.first + blockIdx.x;
  const int tiles = (count + kKeys - 1) / kKeys;
  load_statistics(s, a, kPart * kGroup + thread_again());
  named_sync(kReady, kMath);
  barrier_wait(&s.q_full, 0);
  float dq[4][32] = {}, tail[16] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    barrier_wait(&s.full, tile & 1);
    score_gradients<kPart, kDk>(s, a, count - tile * kKeys);
    fence_to_async();
    named_sync(kWritten, kMath);
    const int thread = thread_again();
    if (kPart == 0 && a.head_sum && thread < kKeys && tile * kKeys + thread < count)
      a.head_sum[t * a.k + tile * kKeys + thread] = s.head_sum[0][thread] + s.head_sum[1][thread];
#pragma unroll
    for (int i = 0; i < 4; ++i) pin(dq[i]);
    pin(tail);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int kk = 0; kk < kKeys / 16; ++kk)
        wgmma_n64<1, 1>(dq[i], column_descriptor(shared_address(s.dx)) + kk * 128,
                        column_descriptor(shared_address(s.kv[kFirst + i])) + kk * 128, 1);
#pragma unroll
    for (int kk = 0; kHasTail && kk < kKeys / 16; ++kk)
      wgmma_n32<1, 1>(tail, column_descriptor(shared_address(s.dx)) + kk * 128,
                      column_descriptor(shared_address(s.kv[kHasTail ? kTail : 0]) + kPart * 64) + kk * 128, 1);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 4; ++i) pin(dq[i]);
    pin(tail);
    barrier_arrive(&s.empty);
#pragma unroll 1
    for (int i = 0; i < 4; ++i) give_columns<64, true, kDk, kStored>(s, a, tile, kFirst + i, 0);
    if constexpr (kHasTail) give_columns<32, false, kDk, kStored>(s, a, tile, kTail, kPart * 32);
    named_sync(kConsumed, kMath);  // p, dx and head_sum are free again
  }
  const int thread = thread_again(), lane = thread % 32, row = thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = row + 8 * half;
    if (head >= a.heads) continue;
    bf16* to = a.dq + (t * a.heads + head) * kDk + lane % 4 * 2;
    const auto store = [&](int column, float x, float y) { *reinterpret_cast<__nv_bfloat162*>(to + column) = __floats2bfloat162_rn(x, y); };
#pragma unroll
    for (int i = 0; i < 16; ++i)
      store((kFirst + i / 4) * 64 + i % 4 * 16, dq[i / 4][i % 4 * 8 + 2 * half], dq[i / 4][i % 4 * 8 + 2 * half + 1]),
          store((kFirst + i / 4) * 64 + i % 4 * 16 + 8, dq[i / 4][i % 4 * 8 + 4 + 2 * half], dq[i / 4][i % 4 * 8 + 5 + 2 * half]);
#pragma unroll
    for (int j = 0; kHasTail && j < 4; ++j) store(kTail * 64 + kPart * 32 + 8 * j, tail[4 * j + 2 * half], tail[4 * j + 2 * half + 1]);
  }
}

template <int kDk, bool kStored>
__global__ void __launch_bounds__(kThreads, 1) backward(const Arguments a) {
  extern __shared__ unsigned char raw[];
  Shared<kDk>& s = *reinterpret_cast<Shared<kDk>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t t = a.first + blockIdx.x;
  const int count = a.counts[t];
  if (a.head_sum)
    for (int j = count + thread; j < a.k; j += kThreads) a.head_sum[t * a.k + j] = 0;
  if (count == 0) {
    for (int i = thread; i < a.heads * kDk; i += kThreads) a.dq[t * a.heads * kDk + i] = __float2bfloat16(0.f);
    return;
  }
  if (thread == 0) {
    barrier_init(&s.q_full, kGroup);
    barrier_init(&s.full, kGroup);
    barrier_init(&s.empty, kMath);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    produce<kDk>(s, a, count, thread);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    if (group == 1) consume<0, kDk, kStored>(s, a, count);
    else consume<1, kDk, kStored>(s, a, count);
  }
}

}  // namespace

template <int kDk>
static void launch_backward(const SparseAttentionBackward& b, Workspace workspace) {
  constexpr size_t kShared = sizeof(Shared<kDk>) + 1024 <= 232448 ? sizeof(Shared<kDk>) + 1024 : 232448;
  static_assert(sizeof(Shared<kDk>) <= 232448);
  const bool stored = b.deterministic;
  const int64_t queries = b.q.size(0), k = b.selection.indices.size(1), at_a_time = stored ? queries_at_a_time(queries, k, kDk) : queries;
  const auto stream = static_cast<cudaStream_t>(b.stream.handle);
  const auto kernel = stored ? backward<kDk, true> : backward<kDk, false>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  HYSCALE_CHECK(status == cudaSuccess, kShared, " bytes of shared memory: ", cudaGetErrorString(status));
  const RowContributions contributions = stored ? take_row_contributions(at_a_time, k, kDk, workspace) : RowContributions{};
  for (int64_t first = 0, last; first < queries; first = last) {
    last = std::min(queries, first + at_a_time);
    const Arguments a{b.q.data<bf16>(), b.kv.data<bf16>(), b.out.data<bf16>(), b.dout.data<bf16>(), b.selection.indices.i32(),
                      b.selection.counts.i32(), b.lse.f32(), b.dq.data<bf16>(), b.dkv.f32(), b.head_sum.defined() ? b.head_sum.f32() : nullptr,
                      contributions.numbers, first, b.kv.stride(0), b.dkv.stride(0), static_cast<int>(b.q.size(1)), static_cast<int>(k), b.scale};
    kernel<<<static_cast<unsigned>(last - first), kThreads, kShared, stream>>>(a);
    check_attention_launch("sparse_attention_backward_hopper");
    if (!stored || k == 0) continue;
    sort_pairs(b.selection, first, last, b.kv.size(0), contributions, stream);
    add_contributions(contributions, (last - first) * k, kDk, b.dkv, stream);
  }
}

size_t sparse_attention_backward_hopper_workspace_bytes(const SparseAttentionBackward& b) {
  if (!b.deterministic) return 0;
  const int64_t k = b.selection.indices.size(1);
  const int width = static_cast<int>(b.q.size(2));
  return row_contributions_bytes(queries_at_a_time(b.q.size(0), k, width), k, width);
}

void sparse_attention_backward_hopper(const SparseAttentionBackward& b, const Workspace& workspace) {
  b.q.size(2) == 576 ? launch_backward<576>(b, workspace) : launch_backward<512>(b, workspace);
}

}  // namespace hyscale
