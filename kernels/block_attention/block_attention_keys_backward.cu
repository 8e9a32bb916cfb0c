// dk and dv of block attention on Hopper where queries share little: a thread block per (tile of 16 blocks, group of heads) keeps the
// tile's K and V in shared memory and its sums of dk and dv in registers, and walks through the queries that read any of the blocks, five
// at a time (Qwen3.8). With X^T = K Q^T and dP^T = V dO^T, keys as rows and the queries' heads (64, padded) as columns, P and dX 0 where
// a query does not read a key:
//   P = exp(scale X - lse), dX = scale P (dP - delta), delta[h] = dout[h] . out[h]
//   dk += dX^T Q     dv += P^T dO
// One warpgroup makes P and dv; the other makes dX of that P, and dk. Queries ascend, and a row is added to once, beside the tails of other queries.
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
  alignas(1024) unsigned char p[2][kTileBytes];  // [keys][heads]
  alignas(1024) unsigned char dx[kTileBytes];    // [keys][heads]
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

// P of a stage is in shared memory; the other warpgroup has read it; a warpgroup's own operand is complete.
enum Barrier { kReady = 1, kTaken = 3, kOwn = 5 };
__device__ __forceinline__ void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

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

// x = keys rows^T, issued.
__device__ __forceinline__ void issue_products(float (&x)[32], const unsigned char (*keys)[kTileBytes], const unsigned char (*rows)[kTileBytes]) {
#pragma unroll
  for (int kk = 0; kk < kDims / 16; ++kk)
    wgmma_n64<0, 0>(x, row_descriptor(shared_address(keys[kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(rows[kk / 4])) + kk % 4 * 2, kk != 0);
  wgmma_commit();
}

// What a thread holds of a product: pairs of heads `column`, `column` + 1 of a key, x[i] and x[i + 1].
template <typename Function>
__device__ __forceinline__ void for_each_pair(Function function) {
  const int thread = thread_again(), lane = thread % 32, row = thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) function(row + 8 * half, 8 * j + lane % 4 * 2, 4 * j + 2 * half, tile_offset(row + 8 * half, j) + lane % 4 * 4);
}

// P to shared memory, for both warpgroups.
__device__ __forceinline__ void write_probabilities(Shared& s, int stage, float scale_log2, const float (&x)[32]) {
  for_each_pair([&](int key, int column, int i, uint32_t at) {
    const float2 lse = *reinterpret_cast<const float2*>(&s.lse[stage][column]);
    const uint2 blocks = *reinterpret_cast<const uint2*>(&s.blocks[stage][column]);
    const float p0 = blocks.x >> key / 4 & 1 ? exp2f(x[i] * scale_log2 - lse.x) : 0.f, p1 = blocks.y >> key / 4 & 1 ? exp2f(x[i + 1] * scale_log2 - lse.y) : 0.f;
    *reinterpret_cast<__nv_bfloat162*>(s.p[stage] + at) = __floats2bfloat162_rn(p0, p1);
  });
}
__device__ __forceinline__ void write_gradients(Shared& s, int stage, float scale, const float (&dp)[32]) {
  for_each_pair([&](int, int column, int i, uint32_t at) {
    const float2 delta = *reinterpret_cast<const float2*>(&s.delta[stage][column]), p = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(s.p[stage] + at));
    *reinterpret_cast<__nv_bfloat162*>(s.dx + at) = __floats2bfloat162_rn(scale * p.x * (dp[i] - delta.x), scale * p.y * (dp[i + 1] - delta.y));
  });
}

template <int kPart>
__device__ void consume(Shared& s, const Arguments& a, int group, int steps) {
  float sums[2 * 64] = {}, x[32];  // sums of dv or dk; scores or their gradients
  const auto issue_scores = [&](int stage) { kPart == 0 ? issue_products(x, s.k, s.q[stage]) : issue_products(x, s.v, s.dout[stage]); };
  barrier_wait(&s.k_full, 0);
  barrier_wait(&s.full[0], 0);
  pin(x);
  wgmma_begin();
  issue_scores(0);
  wgmma_wait<0>();
  pin(x);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2;
    if (kPart == 0) {
      if (step >= 2) named_sync(kTaken + stage, kMath);
      write_probabilities(s, stage, a.scale * kLog2E, x);
    } else {
      named_sync(kReady + stage, kMath);
      write_gradients(s, stage, a.scale, x);
    }
    fence_to_async();
    if (kPart == 0) named_arrive(kReady + stage, kMath);
    else if (step + 2 < steps) named_arrive(kTaken + stage, kMath);
    named_sync(kOwn + kPart, kGroup);
    pin(sums);
    pin(x);
    wgmma_begin();
#pragma unroll
    for (int kk = 0; kk < kRows / 16; ++kk)
      wgmma_n256<0, 1>(sums, row_descriptor(shared_address(kPart == 0 ? s.p[stage] : s.dx)) + kk * 2,
                       column_descriptor(shared_address(kPart == 0 ? s.dout[stage][0] : s.q[stage][0])) + kk * 128, 1);
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
    barrier_arrive(&s.empty[stage]);
    if (step + 1 < steps) barrier_wait(&s.full[1 - stage], (step + 1) / 2 & 1);
    pin(x);
    wgmma_begin();
    issue_scores(1 - stage);  // behind the last step of what lies there; nobody reads it
    wgmma_wait<0>();
    pin(x);
  }
  const int thread = thread_again();
  float* to = (kPart == 0 ? a.dv : a.dk) + group * kDims;
#pragma unroll
  for (int b = 0; b < kColumns; ++b) {
    float part[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) part[i] = sums[32 * b + i];
    for_each_line_of_fours(part, thread % 32, [&](int row, int column, float x0, float x1, float x2, float x3) {
      const int64_t at = s.rows[thread / 32 * 16 + row];
      if (at >= 0) add_four(to + at * a.groups * kDims + b * 64 + column, x0, x1, x2, x3);
    });
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
