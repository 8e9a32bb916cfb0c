// Block attention backward on Hopper, for heads of 256 numbers: one block per (query, group of heads), keys as rows of the products and
// heads (padded to 16) as columns, as in forward. With X^T = K Q^T and dP^T = V dO^T:
//   P = exp(scale X - lse), dX = scale P (dP - delta), delta[h] = dout[h] . out[h]
//   dq^T += K^T dX^T     dk(row) += dX^T Q     dv(row) += P^T dO
// Contributions to a row are summed over a group's heads before they leave the chip. The groups of a query are a cluster: each keeps the
// sums of P over its heads, and the first one adds them up and takes the largest of every block.
//
// What bounds it: rows of dk and dv are f32, 8.4 MB of reductions per query against 4.2 MB that are gathered; products are 0.3 us.
#include <cooperative_groups.h>

#include "kernels/block_attention/attended_tokens.cuh"
#include "kernels/block_attention/block_attention_cuda.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"

namespace hyscale {
namespace {

using namespace hopper;
namespace cg = cooperative_groups;
constexpr int kThreads = 256, kGroup = 128;
constexpr int kKeys = 64, kHeads = 16, kDims = 256, kBlocks = kDims / 64;
constexpr float kLog2E = 1.4426950408889634f;

struct Shared {
  alignas(1024) unsigned char k[kBlocks][kTileBytes];
  alignas(1024) unsigned char v[kBlocks][kTileBytes];
  alignas(1024) unsigned char q[kBlocks][kHeads * 128];
  alignas(1024) unsigned char dout[kBlocks][kHeads * 128];
  alignas(1024) unsigned char p[kTileBytes];   // [keys][heads]
  alignas(1024) unsigned char dx[kTileBytes];  // [keys][heads]
  float lse[kHeads], delta[kHeads];            // lse in units of log2; +inf for padding, whose P is then 0
  int32_t rows[2][kKeys];
  uint64_t q_full, full, k_empty, v_empty;
  float head_sum[];  // of every token, in whole tiles
};

struct Arguments {
  const bf16 *q, *k, *v, *out, *dout;
  AttendedTokens tokens;
  const float* lse;
  bf16* dq;
  float *dk, *dv, *block_mass;
  int groups, heads;  // heads of a group
  float scale;
  bool prefetch;  // rows of dk and dv into L2 ahead of their reductions
};

__device__ __forceinline__ void prefetch_row(const float* row) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row), "r"(kDims * 4) : "memory");
}

__device__ void produce(Shared& s, const Arguments& a, int64_t t, int group, int count, int thread) {
  const int piece = thread % 8, first_row = thread / 8;
  const int64_t head = (t * a.groups + group) * a.heads + min(first_row, a.heads - 1);
  for (int b = 0; b < kBlocks; ++b) {
    const int64_t from = head * kDims + b * 64 + piece * 8;
    copy16(shared_address(s.q[b]) + tile_offset(first_row, piece), a.q + from, first_row < a.heads);
    copy16(shared_address(s.dout[b]) + tile_offset(first_row, piece), a.dout + from, first_row < a.heads);
  }
  copies_done();
  fence_to_async();
  barrier_arrive(&s.q_full);
  const int tiles = (count + kKeys - 1) / kKeys;
  for (int tile = 0; tile < tiles; ++tile) {
    int32_t rows[4];
    int64_t at[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int slot = tile * kKeys + first_row + 16 * r;
      rows[r] = slot < count ? static_cast<int32_t>(a.tokens.row(t, slot, count)) : -1;
      at[r] = (static_cast<int64_t>(max(rows[r], 0)) * a.groups + group) * kDims;
      if (a.prefetch && piece == 0 && rows[r] >= 0) prefetch_row(a.dk + at[r]), prefetch_row(a.dv + at[r]);
    }
    const auto gather = [&](unsigned char (&to)[kBlocks][kTileBytes], const bf16* from) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
          copy16(shared_address(to[b]) + tile_offset(first_row + 16 * r, piece), from + at[r] + b * 64 + piece * 8, rows[r] >= 0);
    };
    if (tile > 0) barrier_wait(&s.v_empty, (tile - 1) & 1);
    gather(s.v, a.v);
    if (tile > 0) barrier_wait(&s.k_empty, (tile - 1) & 1);
    gather(s.k, a.k);
#pragma unroll
    for (int r = 0; r < 4; ++r)
      if (piece == 0) s.rows[tile & 1][first_row + 16 * r] = rows[r];
    copies_done();
    fence_to_async();
    barrier_arrive(&s.full);
  }
}

__device__ void load_statistics(Shared& s, const Arguments& a, int64_t t, int group, int thread) {
  const int lane = thread % 32;
  for (int h = thread / 32; h < kHeads; h += kGroup / 32) {
    const int64_t row = (t * a.groups + group) * a.heads + h;
    float sum = 0, out[8], dout[8];
    if (h < a.heads) {
      load_pack(a.out + row * kDims + lane * 8, out);
      load_pack(a.dout + row * kDims + lane * 8, dout);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += out[i] * dout[i];
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      s.delta[h] = sum;
      s.lse[h] = h < a.heads ? a.lse[row] * kLog2E : INFINITY;
    }
  }
}

// P, dX and the sums of P over the heads for the tile's 64 keys, to shared memory.
__device__ __forceinline__ void score_gradients(Shared& s, const Arguments& a, int tile, int visible, int thread) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
  float x[8], dp[8];
  pin(x);
  pin(dp);
  wgmma_begin();
#pragma unroll
  for (int kk = 0; kk < kDims / 16; ++kk)
    wgmma_n16<0, 0>(x, row_descriptor(shared_address(s.k[kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.q[kk / 4])) + kk % 4 * 2, kk != 0);
#pragma unroll
  for (int kk = 0; kk < kDims / 16; ++kk)
    wgmma_n16<0, 0>(dp, row_descriptor(shared_address(s.v[kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.dout[kk / 4])) + kk % 4 * 2, kk != 0);
  wgmma_commit();
  wgmma_wait<0>();
  pin(x);
  pin(dp);
  barrier_arrive(&s.v_empty);
  const float scale_log2 = a.scale * kLog2E;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = row + 8 * half;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float p[2], dx[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int head = column + 8 * j + e, i = 4 * j + 2 * half + e;
        p[e] = key < visible ? exp2f(x[i] * scale_log2 - s.lse[head]) : 0.f;
        dx[e] = a.scale * p[e] * (dp[i] - s.delta[head]);
        sum += p[e];
      }
      const uint32_t at = tile_offset(key, j) + lane % 4 * 4;
      *reinterpret_cast<__nv_bfloat162*>(s.p + at) = __floats2bfloat162_rn(p[0], p[1]);
      *reinterpret_cast<__nv_bfloat162*>(s.dx + at) = __floats2bfloat162_rn(dx[0], dx[1]);
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) s.head_sum[tile * kKeys + key] = sum;
  }
}

// to(row) += left right for 64 columns; `left` [keys][heads], `right` [heads][columns].
__device__ __forceinline__ void add_product(const unsigned char* left, const unsigned char* right, float* to, const int32_t* rows, uint32_t stride, int lane) {
  float d[32];
  pin(d);
  wgmma_begin();
  wgmma_n64<0, 1>(d, row_descriptor(shared_address(left)), column_descriptor(shared_address(right)), 0);
  wgmma_commit();
  wgmma_wait<0>();
  pin(d);
  add_rows(d, to, stride, rows, lane);
}

__device__ void consume(Shared& s, const Arguments& a, int64_t t, int group, int count, int thread) {
  const int tiles = (count + kKeys - 1) / kKeys, lane = thread % 32;
  const uint32_t stride = static_cast<uint32_t>(a.groups) * kDims;
  load_statistics(s, a, t, group, thread);
  named_sync(1, kGroup);
  barrier_wait(&s.q_full, 0);
  float dq[kBlocks][8] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    barrier_wait(&s.full, tile & 1);
    score_gradients(s, a, tile, count - tile * kKeys, thread);
    fence_to_async();
    named_sync(1, kGroup);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) pin(dq[b]);
    wgmma_begin();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int kk = 0; kk < kKeys / 16; ++kk)
        wgmma_n16<1, 1>(dq[b], column_descriptor(shared_address(s.k[b])) + kk * 128, column_descriptor(shared_address(s.dx)) + kk * 128, 1);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) pin(dq[b]);
    barrier_arrive(&s.k_empty);
    const int32_t* rows = s.rows[tile & 1] + thread / 32 * 16;
#pragma unroll 1
    for (int b = 0; b < kBlocks; ++b) {
      const int64_t column = group * kDims + b * 64;
      add_product(s.dx, s.q[b], a.dk + column, rows, stride, lane);
      add_product(s.p, s.dout[b], a.dv + column, rows, stride, lane);
    }
    named_sync(1, kGroup);  // p and dx are free again
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = i / 2 * 8 + lane % 4 * 2 + i % 2;
    if (head >= a.heads) continue;
    bf16* to = a.dq + ((t * a.groups + group) * a.heads + head) * kDims + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half) to[b * 64 + 8 * half] = __float2bfloat16(dq[b][i / 2 * 4 + 2 * half + i % 2]);
  }
}

// The head sums of all groups of the cluster, and of every block the largest.
__device__ void write_block_mass(Shared& s, const Arguments& a, int64_t t, int thread) {
  const cg::cluster_group cluster = cg::this_cluster();
  cluster.sync();
  for (int j = thread; cluster.block_rank() == 0 && j < a.tokens.counts[t]; j += kThreads) {
    float most = 0;
    for (int i = j * a.tokens.ratio; i < (j + 1) * a.tokens.ratio; ++i) {
      float sum = 0;
      for (int g = 0; g < a.groups; ++g) sum += *cluster.map_shared_rank(&s.head_sum[i], static_cast<unsigned>(g));
      most = fmaxf(most, sum);
    }
    a.block_mass[t * a.tokens.k + j] = most;
  }
  cluster.sync();
}

__global__ void __launch_bounds__(kThreads, 2) backward(const Arguments a) {
  extern __shared__ unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x), group = static_cast<int>(blockIdx.x) % a.groups;
  const int64_t t = blockIdx.x / a.groups;
  const int count = a.tokens.count(t);
  if (a.block_mass && group == 0)
    for (int j = a.tokens.counts[t] + thread; j < a.tokens.k; j += kThreads) a.block_mass[t * a.tokens.k + j] = 0;
  if (count == 0) {
    for (int i = thread; i < a.heads * kDims; i += kThreads) a.dq[(t * a.groups + group) * a.heads * kDims + i] = __float2bfloat16(0.f);
    return;
  }
  if (thread == 0) {
    for (uint64_t* b : {&s.q_full, &s.full, &s.k_empty, &s.v_empty}) barrier_init(b, kGroup);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (thread < kGroup) produce(s, a, t, group, count, thread);
  else consume(s, a, t, group, count, thread - kGroup);
  if (a.block_mass) write_block_mass(s, a, t, thread);
}

}  // namespace

void block_attention_backward_hopper(const BlockAttentionBackward& b) {
  const int groups = static_cast<int>(b.k.size(1));
  const AttendedTokens tokens(b.blocks);
  const size_t shared = sizeof(Shared) + 1024 + static_cast<size_t>((tokens.most() + kKeys - 1) / kKeys * kKeys) * sizeof(float);
  const Arguments a{b.q.data<bf16>(), b.k.data<bf16>(), b.v.data<bf16>(), b.out.data<bf16>(), b.dout.data<bf16>(), tokens, b.lse.f32(), b.dq.data<bf16>(),
                    b.dk.f32(), b.dv.f32(), b.block_mass.defined() ? b.block_mass.f32() : nullptr, groups, static_cast<int>(b.q.size(1)) / groups, b.scale,
                    b.dk.bytes() >= size_t{1} << 30};
  check_cuda(cudaFuncSetAttribute(backward, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "shared memory of block_attention_backward");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(groups), 1, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(b.q.size(0) * groups));
  launch.blockDim = dim3(kThreads);
  launch.dynamicSmemBytes = shared;
  launch.stream = stream_of(b.stream);
  launch.attrs = &cluster;
  launch.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&launch, backward, a), "block_attention_backward_hopper");
}

}  // namespace hyscale
