// dk and dv of block attention on Hopper where queries share little: a thread block per (tile of 16 blocks, group of heads) keeps the
// tile's K and V in shared memory and its sums of dk and dv in registers, and walks through the queries that read any of the blocks, five
// at a time (Qwen3.8). With X^T = K Q^T and dP^T = V dO^T, keys as rows and the queries' heads (64, padded) as columns, P and dX 0 where
// a query does not read a key:
//   P = exp(scale X - lse), dX = scale P (dP - delta), delta[h] = dout[h] . out[h]
//   dk += dX^T Q     dv += P^T dO
// Each of two warpgroups takes half of the heads for P and dX, and dk or dv. Queries ascend, and a row is added to once, beside the tails of
// other queries.
//
// What bounds it: a reader brings 12 KiB of q and dout per group of heads, as much as its block's reductions (8 KiB) and keys would take, but
// these are reads, which L2 serves at twice the rate of reductions, and thread blocks pass through the queries in step, so that few of
// them come from memory.
#include "kernels/block_attention/block_attention_cuda.h"
#include "kernels/block_attention/key_readers.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"

namespace hyscale {
namespace {

using namespace hopper;
constexpr int kThreads = 384, kMath = 256, kGroup = 128;
constexpr int kKeys = 4 * kTileBlocks, kRows = 64, kDims = 256, kColumns = kDims / 64;
constexpr float kLog2E = 1.4426950408889634f;

struct Shared {
  alignas(1024) unsigned char k[kColumns][kTileBytes];
  alignas(1024) unsigned char v[kColumns][kTileBytes];
  alignas(1024) unsigned char q[2][kColumns][kTileBytes];
  alignas(1024) unsigned char dout[2][kColumns][kTileBytes];
  alignas(1024) unsigned char p[2][kTileBytes];   // [keys][heads]
  alignas(1024) unsigned char dx[2][kTileBytes];  // [keys][heads]
  float lse[2][kRows], delta[2][kRows];           // lse in units of log2; +inf for padding, whose P is then 0
  uint32_t blocks[2][kRows];                      // that the head's query reads
  int32_t rows[kKeys];                            // of k and v; -1 beyond the last block
  uint64_t k_full, full[2], empty[2];
};

struct Arguments {
  const bf16 *q, *k, *v, *dout;  // q and dout from the first query on
  KeyReaders readers;
  const int32_t* first_token;
  const float* lse;
  float *dk, *dv;
  int num_blocks, united, groups, heads;  // heads of a group
  float scale;
};

enum Barrier { kWritten = 1 };

__device__ void produce(Shared& s, const Arguments& a, int tile, int group, const uint32_t* readers, int count, int thread) {
  const int piece = thread % 8, first_row = thread / 8;
#pragma unroll 1
  for (int row = first_row; row < kKeys; row += 16) {
    const int block = tile * kTileBlocks + row / 4;
    const bool valid = block < a.num_blocks;
    const int32_t token = valid ? a.first_token[block] + row % 4 : 0;
    if (piece == 0) s.rows[row] = valid ? token : -1;
    const int64_t at = (static_cast<int64_t>(token) * a.groups + group) * kDims + piece * 8;
    for (int b = 0; b < kColumns; ++b) {
      copy16(shared_address(s.k[b]) + tile_offset(row, piece), a.k + at + b * 64, valid);
      copy16(shared_address(s.v[b]) + tile_offset(row, piece), a.v + at + b * 64, valid);
    }
  }
  copies_done();
  fence_to_async();
  barrier_arrive(&s.k_full);
  const int steps = (count + a.united - 1) / a.united;
  uint32_t of_row[4], of_thread;  // readers
  const auto reader = [&](int step, int row) {
    const int i = step * a.united + row / a.heads;
    return row < a.united * a.heads && i < count ? readers[i] : 0;  // a reader reads something
  };
  const auto fetch = [&](int step) {
#pragma unroll
    for (int r = 0; r < 4; ++r) of_row[r] = reader(step, first_row + 16 * r);
    of_thread = reader(step, thread % kRows);
  };
  const auto head_row = [&](uint32_t reader, int row) { return (static_cast<int64_t>(reader >> kTileBlocks) * a.groups + group) * a.heads + row % a.heads; };
  fetch(0);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2;
    float lse = INFINITY, delta = 0;
    if (thread < kRows && of_thread) lse = a.lse[head_row(of_thread, thread)] * kLog2E, delta = a.readers.deltas[head_row(of_thread, thread)];
    if (step >= 2) barrier_wait(&s.empty[stage], (step / 2 - 1) & 1);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = first_row + 16 * r;
      const int64_t at = (of_row[r] ? head_row(of_row[r], row) : 0) * kDims + piece * 8;
#pragma unroll
      for (int b = 0; b < kColumns; ++b) {
        copy16(shared_address(s.q[stage][b]) + tile_offset(row, piece), a.q + at + b * 64, of_row[r]);
        copy16(shared_address(s.dout[stage][b]) + tile_offset(row, piece), a.dout + at + b * 64, of_row[r]);
      }
    }
    if (thread < kRows) s.lse[stage][thread] = lse, s.delta[stage][thread] = delta, s.blocks[stage][thread] = of_thread;
    fetch(step + 1);
    copies_done();
    fence_to_async();
    barrier_arrive(&s.full[stage]);
  }
}

// The thread's index in its warpgroup, read anew: what is derived from it is not kept in registers over the whole loop.
__device__ __forceinline__ int thread_again() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x % kGroup;
}

// Scores and their gradients of the warpgroup's 32 heads, issued.
template <int kPart>
__device__ __forceinline__ void issue_scores(const Shared& s, int stage, float (&x)[16], float (&dp)[16]) {
#pragma unroll
  for (int kk = 0; kk < kDims / 16; ++kk)
    wgmma_n32<0, 0>(x, row_descriptor(shared_address(s.k[kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.q[stage][kk / 4]) + kPart * 4096) + kk % 4 * 2, kk != 0);
#pragma unroll
  for (int kk = 0; kk < kDims / 16; ++kk)
    wgmma_n32<0, 0>(dp, row_descriptor(shared_address(s.v[kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.dout[stage][kk / 4]) + kPart * 4096) + kk % 4 * 2, kk != 0);
  wgmma_commit();
}

// P and dX of the warpgroup's 32 heads for the 64 keys, to shared memory.
template <int kPart>
__device__ __forceinline__ void write_gradients(Shared& s, int stage, float scale, const float (&x)[16], const float (&dp)[16]) {
  const int thread = thread_again(), lane = thread % 32, row = thread / 32 * 16 + lane / 4, column = kPart * 32 + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 lse = *reinterpret_cast<const float2*>(&s.lse[stage][column + 8 * j]), delta = *reinterpret_cast<const float2*>(&s.delta[stage][column + 8 * j]);
    const uint2 blocks = *reinterpret_cast<const uint2*>(&s.blocks[stage][column + 8 * j]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = row + 8 * half, i = 4 * j + 2 * half;
      const float p0 = blocks.x >> key / 4 & 1 ? exp2f(x[i] * scale * kLog2E - lse.x) : 0.f, p1 = blocks.y >> key / 4 & 1 ? exp2f(x[i + 1] * scale * kLog2E - lse.y) : 0.f;
      const uint32_t at = tile_offset(key, kPart * 4 + j) + lane % 4 * 4;
      *reinterpret_cast<__nv_bfloat162*>(s.p[stage] + at) = __floats2bfloat162_rn(p0, p1);
      *reinterpret_cast<__nv_bfloat162*>(s.dx[stage] + at) = __floats2bfloat162_rn(scale * p0 * (dp[i] - delta.x), scale * p1 * (dp[i + 1] - delta.y));
    }
  }
}

template <int kPart>
__device__ void consume(Shared& s, const Arguments& a, int group, int steps) {
  float sums[2 * 64] = {}, x[16], dp[16];  // sums of dk or dv
  barrier_wait(&s.k_full, 0);
  barrier_wait(&s.full[0], 0);
  pin(x);
  pin(dp);
  wgmma_begin();
  issue_scores<kPart>(s, 0, x, dp);
  wgmma_wait<0>();
  pin(x);
  pin(dp);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2;
    write_gradients<kPart>(s, stage, a.scale, x, dp);
    fence_to_async();
    named_sync(kWritten, kMath);
    pin(sums);
    pin(x);
    pin(dp);
    wgmma_begin();
#pragma unroll
    for (int kk = 0; kk < kRows / 16; ++kk)
      wgmma_n256<0, 1>(sums, row_descriptor(shared_address(kPart == 0 ? s.dx[stage] : s.p[stage])) + kk * 2,
                       column_descriptor(shared_address(kPart == 0 ? s.q[stage][0] : s.dout[stage][0])) + kk * 128, 1);
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
    barrier_arrive(&s.empty[stage]);
    if (step + 1 < steps) barrier_wait(&s.full[1 - stage], (step + 1) / 2 & 1);
    pin(x);
    pin(dp);
    wgmma_begin();
    issue_scores<kPart>(s, 1 - stage, x, dp);  // behind the last step of what lies there; nobody reads it
    wgmma_wait<0>();
    pin(x);
    pin(dp);
  }
  const int thread = thread_again();
  float* to = (kPart == 0 ? a.dk : a.dv) + group * kDims;
#pragma unroll
  for (int b = 0; b < kColumns; ++b) {
    float part[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) part[i] = sums[32 * b + i];
    add_rows(part, to + b * 64, a.groups * kDims, s.rows + thread / 32 * 16, thread % 32);
  }
}

__global__ void __launch_bounds__(kThreads, 1) backward(const Arguments a) {
  extern __shared__ unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x), warpgroup = thread / kGroup;
  const int tile = static_cast<int>(blockIdx.x) % a.readers.tiles, group = static_cast<int>(blockIdx.x) / a.readers.tiles;
  if (!*a.readers.apart) return;
  const int begin = a.readers.starts[tile], count = a.readers.starts[tile + 1] - begin;
  if (count == 0) return;
  if (thread == 0) {
    barrier_init(&s.k_full, kGroup);
    for (uint64_t* b : {&s.full[0], &s.full[1]}) barrier_init(b, kGroup);
    for (uint64_t* b : {&s.empty[0], &s.empty[1]}) barrier_init(b, kMath);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    produce(s, a, tile, group, a.readers.readers + begin, count, thread);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    const int steps = (count + a.united - 1) / a.united;
    if (warpgroup == 1) consume<0>(s, a, group, steps);
    else consume<1>(s, a, group, steps);
  }
}

}  // namespace

void block_attention_backward_keys(const BlockAttentionBackward& b, int64_t first, const KeyReaders& readers) {
  const int groups = static_cast<int>(b.k.size(1)), heads = static_cast<int>(b.q.size(1));
  const int64_t row = first * heads;
  const size_t shared = sizeof(Shared) + 1024;
  check_cuda(cudaFuncSetAttribute(backward, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "shared memory of block_attention_backward_keys");
  const Arguments a{b.q.data<bf16>() + row * kDims, b.k.data<bf16>(), b.v.data<bf16>(), b.dout.data<bf16>() + row * kDims, readers, b.blocks.first_token.i32(), b.lse.f32() + row,
                    b.dk.f32(), b.dv.f32(), static_cast<int>(b.blocks.first_token.size(0)), united_queries(b), groups, heads / groups, b.scale};
  backward<<<static_cast<unsigned>(readers.tiles * groups), kThreads, shared, stream_of(b.stream)>>>(a);
  check_launch("block_attention_backward_keys");
}

}  // namespace hyscale
