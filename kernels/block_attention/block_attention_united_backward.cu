// Block attention backward on Hopper for neighbouring queries that share blocks, heads of 256 numbers: a thread block per (group of queries,
// group of heads), keys as rows of the products and the queries' heads (64, padded) as columns. With X^T = K Q^T and dP^T = V dO^T, P and
// dX 0 where a query does not read a key:
//   P = exp(scale X - lse), dX = scale P (dP - delta), delta[h] = dout[h] . out[h]
//   dq += dX K     dk(row) += dX^T Q     dv(row) += P^T dO
// Each of two warpgroups takes every other tile of keys, so that one multiplies while the other makes P and dX; their dq meet at the end.
// Contributions to a row are summed over the queries and their heads before they leave the chip. The groups of heads are a cluster: each
// keeps the sums of P over its heads, and at the end they share out adding them up and taking the largest of every block.
//
// What bounds it: rows of dk and dv are f32, 2 KiB of reductions for each gathered KiB; without anything shared 8.4 MB per query. The union
// of five queries' blocks divides both by up to five. Where it is about as large as the selections, dk and dv are left to
// block_attention_backward_keys, but for the tails, which belong to no block.
#include <cooperative_groups.h>

#include "kernels/block_attention/block_attention_cuda.h"
#include "kernels/block_attention/key_readers.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"

namespace hyscale {
namespace {

using namespace hopper;
namespace cg = cooperative_groups;
constexpr int kThreads = 384, kMath = 256, kGroup = 128;
constexpr int kKeys = 64, kRows = 64, kDims = 256, kColumns = kDims / 64, kStages = 4;
constexpr float kLog2E = 1.4426950408889634f;

struct Shared {
  alignas(1024) unsigned char q[kColumns][kTileBytes];
  alignas(1024) unsigned char dout[kColumns][kTileBytes];
  alignas(1024) unsigned char rows[kStages][kColumns][kTileBytes];  // of K and of V in turn
  alignas(1024) unsigned char dx[2][kTileBytes];  // of each warpgroup: [keys][heads], dX and then P
  alignas(8) float lse[kRows], delta[kRows];   // lse in units of log2; +inf for padding, whose P is then 0
  alignas(8) int shift[kRows];                 // of a head's query among the readers of a block
  float fours[2][kRows / 4][kKeys];            // of each warpgroup: sums of P over four neighbouring heads
  alignas(16) uint16_t slots[2][kKeys / 4][kMostUnited];
  uint32_t readers[2][kKeys / 4];
  int32_t to[2][kKeys];                        // rows of dk and dv to add to; -1: none
  uint64_t q_full, full[kStages], empty[kStages];
};

struct Arguments {
  const bf16 *q, *k, *v, *out, *dout;
  UnitedBlocks u;
  const int32_t* selected;  // blocks of each query
  const float* lse;
  bf16* dq;
  float *dk, *dv, *block_mass;
  float* head_sums;  // [thread blocks, united, k, 4]: of P over a group's heads, for every token of the queries' selected blocks
  int64_t first, last;  // queries
  int groups, heads;    // heads of a group
  float scale;
  bool prefetch;  // rows of dk and dv into L2 ahead of their reductions
  KeyReaders readers;
};

enum Barrier { kReady = 1, kExchange, kOwn };

__device__ __forceinline__ int64_t first_query(const Arguments& a) { return a.first + static_cast<int64_t>(blockIdx.x / a.groups) * a.u.united; }

// Row of q, out and dout that is row `row` of the tile; -1 where it is padding.
__device__ __forceinline__ int64_t head_row(const Arguments& a, int row) {
  const int64_t t = first_query(a) + row / a.heads;
  return row < a.u.united * a.heads && t < a.last ? (t * a.groups + blockIdx.x % a.groups) * a.heads + row % a.heads : -1;
}

// Brings a row that will be added to into L2 in one request, a tile's work before the reductions that need it.
__device__ __forceinline__ void prefetch_row(const float* row) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row), "r"(kDims * 4) : "memory");
}

__device__ __forceinline__ bool barrier_passed(uint64_t* b, int parity) {
  uint32_t passed;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(passed) : "r"(shared_address(b)), "r"(parity) : "memory");
  return passed;
}

__device__ void produce(Shared& s, const Arguments& a, UnitedCounts counts, int thread) {
  const int count = counts.all, first_summed = *a.readers.apart ? counts.selected : 0;
  const int piece = thread % 8, first_row = thread / 8, token = first_row % 4, group = static_cast<int>(blockIdx.x) % a.groups;
#pragma unroll 1
  for (int row = first_row; row < kRows; row += 16) {
    const int64_t from = head_row(a, row);
#pragma unroll 1
    for (int b = 0; b < kColumns; ++b) {
      const int64_t at = max(from, int64_t{0}) * kDims + b * 64 + piece * 8;
      copy16(shared_address(s.q[b]) + tile_offset(row, piece), a.q + at, from >= 0);
      copy16(shared_address(s.dout[b]) + tile_offset(row, piece), a.dout + at, from >= 0);
    }
  }
  copies_done();
  fence_to_async();
  barrier_arrive(&s.q_full);
  const int64_t list = static_cast<int64_t>(blockIdx.x / a.groups) * a.u.most();
  const int tiles = (count * 4 + kKeys - 1) / kKeys;
  const auto publish = [&](int turn) {
    fence_to_async();
    barrier_arrive(&s.full[turn % kStages]);
  };
  UnitedBlock of_row[4];
  for (int turn = 0; turn < 2 * tiles; ++turn) {
    const int tile = turn / 2, stage = turn % kStages;
    if (turn % 2 == 0) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int block = tile * (kKeys / 4) + first_row / 4 + 4 * r;
        of_row[r] = block < count ? a.u.blocks[list + block] : UnitedBlock{0, 0};
      }
    }
    const bool late = turn >= kStages && !barrier_passed(&s.empty[stage], (turn / kStages - 1) & 1);
    if (late) {  // nothing to load into: what is under way is the next that is wanted
      copies_done();
      publish(turn - 1);
      barrier_wait(&s.empty[stage], (turn / kStages - 1) & 1);
    }
    const int block = tile * (kKeys / 4) + thread;
    if (turn % 2 == 0 && thread < kKeys / 4) copy16(shared_address(s.slots[tile & 1][thread]), a.u.slots + (list + min(block, count - 1)) * kMostUnited, block < count);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const bool read = of_row[r].readers & 0x11111111u << token;
      const int row = first_row + 16 * r;
      const int64_t at = (static_cast<int64_t>(read ? of_row[r].row + token : 0) * a.groups + group) * kDims;
      const bf16* from = (turn % 2 ? a.v : a.k) + at + piece * 8;
#pragma unroll
      for (int b = 0; b < kColumns; ++b) copy16(shared_address(s.rows[stage][b]) + tile_offset(row, piece), from + b * 64, read);
      if (turn % 2 || piece != 0) continue;
      const bool summed = read && tile * (kKeys / 4) + row / 4 >= first_summed;
      s.to[tile & 1][row] = summed ? of_row[r].row + token : -1;
      if (token == 0) s.readers[tile & 1][row / 4] = of_row[r].readers;
      if (a.prefetch && summed) prefetch_row(a.dk + at), prefetch_row(a.dv + at);
    }
    copies_commit();
    if (turn == 0 || late) continue;
    copies_wait<1>();
    publish(turn - 1);
  }
  copies_done();
  if (tiles > 0) publish(2 * tiles - 1);
}

// delta, lse and query of every head; 8 warps.
__device__ void load_statistics(Shared& s, const Arguments& a, int thread) {
  const int lane = thread % 32;
  for (int h = thread / 32; h < kRows; h += kMath / 32) {
    const int64_t row = head_row(a, h);
    float sum = 0, out[8], dout[8];
    if (row >= 0) {
      load_pack(a.out + row * kDims + lane * 8, out);
      load_pack(a.dout + row * kDims + lane * 8, dout);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += out[i] * dout[i];
    }
    sum = warp_sum(sum);
    if (lane != 0) continue;
    s.delta[h] = sum;
    if (row >= 0) a.readers.deltas[row - a.first * a.groups * a.heads] = sum;
    s.lse[h] = row >= 0 ? a.lse[row] * kLog2E : INFINITY;
    s.shift[h] = min(h / a.heads, kMostUnited - 1) * 4;
  }
}

// The thread's index in its warpgroup, read anew: what is derived from it is not kept in registers over the whole loop.
__device__ __forceinline__ int thread_again() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x % kGroup;
}

// x = keys rows^T, finished.
__device__ __forceinline__ void multiply(float (&x)[32], const unsigned char (*keys)[kTileBytes], const unsigned char (*rows)[kTileBytes]) {
  pin(x);
  wgmma_begin();
#pragma unroll
  for (int kk = 0; kk < kDims / 16; ++kk)
    wgmma_n64<0, 0>(x, row_descriptor(shared_address(keys[kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(rows[kk / 4])) + kk % 4 * 2, kk != 0);
  wgmma_commit();
  wgmma_wait<0>();
  pin(x);
}

// P of the tile's scores, rounded, and sums of it over fours of heads.
template <int kPart>
__device__ __forceinline__ void probabilities(Shared& s, const Arguments& a, int tile, const float (&x)[32], __nv_bfloat162 (&p)[16]) {
  const int thread = thread_again(), lane = thread % 32, row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
  const float scale_log2 = a.scale * kLog2E;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = row + 8 * half;
    const uint32_t of_key = s.readers[tile & 1][key / 4] >> key % 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 lse = *reinterpret_cast<const float2*>(&s.lse[column + 8 * j]);
      const int2 shift = *reinterpret_cast<const int2*>(&s.shift[column + 8 * j]);
      const int i = 4 * j + 2 * half;
      const float p0 = of_key >> shift.x & 1 ? exp2f(x[i] * scale_log2 - lse.x) : 0.f, p1 = of_key >> shift.y & 1 ? exp2f(x[i + 1] * scale_log2 - lse.y) : 0.f;
      p[i / 2] = __floats2bfloat162_rn(p0, p1);
      const float four = p0 + p1 + __shfl_xor_sync(~0u, p0 + p1, 1);
      if (lane % 2 == 0) s.fours[kPart][2 * j + lane % 4 / 2][key] = four;
    }
  }
}

// dX of the gradients of P, into the warpgroup's operand.
template <int kPart>
__device__ __forceinline__ void write_gradients(Shared& s, const Arguments& a, const float (&dp)[32], const __nv_bfloat162 (&p)[16]) {
  const int thread = thread_again(), lane = thread % 32, row = thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 delta = *reinterpret_cast<const float2*>(&s.delta[8 * j + lane % 4 * 2]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 4 * j + 2 * half;
      const float2 of_pair = __bfloat1622float2(p[i / 2]);
      *reinterpret_cast<__nv_bfloat162*>(s.dx[kPart] + tile_offset(row + 8 * half, j) + lane % 4 * 4) =
          __floats2bfloat162_rn(a.scale * of_pair.x * (dp[i] - delta.x), a.scale * of_pair.y * (dp[i + 1] - delta.y));
    }
  }
}
template <int kPart>
__device__ __forceinline__ void write_probabilities(Shared& s, const __nv_bfloat162 (&p)[16]) {
  const int thread = thread_again(), lane = thread % 32, row = thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 16; ++i) *reinterpret_cast<__nv_bfloat162*>(s.dx[kPart] + tile_offset(row + 8 * (i % 2), i / 2) + lane % 4 * 4) = p[i];
}

__device__ __forceinline__ float* head_sums_of(const Arguments& a, unsigned block) { return a.head_sums + static_cast<int64_t>(block) * a.u.united * a.u.k * 4; }

// Sums of P over the heads, into the places that the selections give the tile's blocks. A warpgroup.
__device__ __forceinline__ void keep_head_sums(const Shared& s, const float (&fours)[kRows / 4][kKeys], const Arguments& a, int tile, int selected, int thread) {
  for (int i = thread; i < kKeys * a.u.united; i += kGroup) {
    const int key = i % kKeys, query = i / kKeys, block = key / 4;
    if (tile * (kKeys / 4) + block >= selected || !(s.readers[tile & 1][block] >> 4 * query & 1)) continue;
    float sum = 0;
    for (int four = query * a.heads / 4; four < (query + 1) * a.heads / 4; ++four) sum += fours[four][key];
    head_sums_of(a, blockIdx.x)[(query * a.u.k + s.slots[tile & 1][block][query]) * 4 + key % 4] = sum;
  }
}

// to(row) += left right for 64 columns; `left` [keys][heads], `right` [heads][columns].
__device__ __forceinline__ void add_product(const unsigned char* left, const unsigned char* right, float* to, const int32_t* rows, uint32_t stride, int lane) {
  float d[32];
  pin(d);
  wgmma_begin();
#pragma unroll
  for (int kk = 0; kk < kRows / 16; ++kk)
    wgmma_n64<0, 1>(d, row_descriptor(shared_address(left)) + kk * 2, column_descriptor(shared_address(right)) + kk * 128, kk != 0);
  wgmma_commit();
  wgmma_wait<0>();
  pin(d);
  add_rows(d, to, stride, rows, lane);
}

template <int kPart>
__device__ void consume(Shared& s, const Arguments& a, UnitedCounts count) {
  const int tiles = (count.all * 4 + kKeys - 1) / kKeys, first_summed = *a.readers.apart ? count.selected * 4 / kKeys : 0;
  load_statistics(s, a, kPart * kGroup + thread_again());
  named_sync(kReady, kMath);
  barrier_wait(&s.q_full, 0);
  float dq[2 * 64] = {}, x[32];
  constexpr int kStage = 2 * kPart;
#pragma unroll 1
  for (int tile = kPart; tile < tiles; tile += 2) {
    __nv_bfloat162 p[16];
    barrier_wait(&s.full[kStage], tile / 2 & 1);
    multiply(x, s.rows[kStage], s.q);
    probabilities<kPart>(s, a, tile, x, p);
    barrier_wait(&s.full[kStage + 1], tile / 2 & 1);
    multiply(x, s.rows[kStage + 1], s.dout);
    barrier_arrive(&s.empty[kStage + 1]);
    write_gradients<kPart>(s, a, x, p);
    fence_to_async();
    named_sync(kOwn + kPart, kGroup);
    pin(dq);
    wgmma_begin();
#pragma unroll
    for (int kk = 0; kk < kKeys / 16; ++kk)
      wgmma_n256<1, 1>(dq, column_descriptor(shared_address(s.dx[kPart])) + kk * 128, column_descriptor(shared_address(s.rows[kStage][0])) + kk * 128, 1);
    wgmma_commit();
    const int thread = thread_again();
    if (a.block_mass) keep_head_sums(s, s.fours[kPart], a, tile, count.selected, thread);
    wgmma_wait<0>();
    pin(dq);
    if (tile >= first_summed) {
      const uint32_t stride = static_cast<uint32_t>(a.groups) * kDims;
      const int64_t group = blockIdx.x % a.groups;
      const int32_t* to = s.to[tile & 1] + thread / 32 * 16;
#pragma unroll 1
      for (int b = 0; b < kColumns; ++b) add_product(s.dx[kPart], s.q[b], a.dk + group * kDims + b * 64, to, stride, thread % 32);
      named_sync(kOwn + kPart, kGroup);
      write_probabilities<kPart>(s, p);
      fence_to_async();
      named_sync(kOwn + kPart, kGroup);
#pragma unroll 1
      for (int b = 0; b < kColumns; ++b) add_product(s.dx[kPart], s.dout[b], a.dv + group * kDims + b * 64, to, stride, thread % 32);
    }
    barrier_arrive(&s.empty[kStage]);
    named_sync(kOwn + kPart, kGroup);  // dx and fours are free again
  }
  // Each warpgroup adds up and writes half of the columns, through memory that held keys.
  float* exchange = reinterpret_cast<float*>(s.rows);
  const int thread = thread_again(), lane = thread % 32;
  named_sync(kExchange, kMath);
#pragma unroll
  for (int i = 0; i < 64; ++i) exchange[((1 - kPart) * 64 + i) * kGroup + thread] = dq[(1 - kPart) * 64 + i];
  named_sync(kExchange, kMath);
#pragma unroll
  for (int i = 0; i < 64; ++i) dq[kPart * 64 + i] += exchange[(kPart * 64 + i) * kGroup + thread];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = head_row(a, thread / 32 * 16 + lane / 4 + 8 * half);
    if (row < 0) continue;
#pragma unroll
    for (int j = 16 * kPart; j < 16 * kPart + 16; ++j)
      *reinterpret_cast<__nv_bfloat162*>(a.dq + row * kDims + 8 * j + lane % 4 * 2) = __floats2bfloat162_rn(dq[4 * j + 2 * half], dq[4 * j + 2 * half + 1]);
  }
}

// The head sums of all groups of the cluster, and of every block the largest.
__device__ void write_block_mass(const Arguments& a, int thread) {
  const cg::cluster_group cluster = cg::this_cluster();
  cluster.sync();
  const int64_t t = first_query(a);
  const int here = static_cast<int>(min(int64_t{a.u.united}, a.last - t)), rank = static_cast<int>(cluster.block_rank());
  for (int i = rank * kThreads + thread; i < here * a.u.k; i += kThreads * a.groups) {
    float most = 0;
    if (i % a.u.k < a.selected[t + i / a.u.k]) {
      float sums[4] = {};
      for (int g = 0; g < a.groups; ++g) {
        const float4 part = __ldcg(reinterpret_cast<const float4*>(head_sums_of(a, blockIdx.x - rank + g)) + i);
        sums[0] += part.x, sums[1] += part.y, sums[2] += part.z, sums[3] += part.w;
      }
      most = fmaxf(fmaxf(sums[0], sums[1]), fmaxf(sums[2], sums[3]));
    }
    a.block_mass[t * a.u.k + i] = most;
  }
}

__global__ void __launch_bounds__(kThreads, 1) backward(const Arguments a) {
  extern __shared__ unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x), warpgroup = thread / kGroup;
  const UnitedCounts count = a.u.counts[blockIdx.x / a.groups];
  if (thread == 0) {
    barrier_init(&s.q_full, kGroup);
    for (uint64_t& b : s.full) barrier_init(&b, kGroup);
    for (uint64_t& b : s.empty) barrier_init(&b, kGroup);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    produce(s, a, count, thread);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    if (warpgroup == 1) consume<0>(s, a, count);
    else consume<1>(s, a, count);
  }
  if (a.block_mass) write_block_mass(a, thread);
}

}  // namespace

void block_attention_backward_united(const BlockAttentionBackward& b) {
  const int groups = static_cast<int>(b.k.size(1));
  const AttendedTokens tokens(b.blocks);
  Workspace workspace(b.workspace);
  const UnitedBlocks u = take_united_blocks(b, workspace, true);
  const KeyReadersSpace space = take_key_readers(b, workspace);
  constexpr size_t kShared = sizeof(Shared) + 1024;
  static_assert(kShared <= 232448);
  float* head_sums = b.block_mass.defined() ? workspace.take<float>(united_groups(b) * u.united * groups * u.k * 4) : nullptr;
  check_cuda(cudaFuncSetAttribute(backward, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)), "shared memory of block_attention_backward");
  // Sums that L2 holds for the most part take reductions at its rate: then nothing is gained by tiles of keys.
  const bool far = b.dk.bytes() >= size_t{1} << 28;
  for (int64_t first = 0, last; first < b.q.size(0); first = last) {
    last = std::min(b.q.size(0), first + kUnitedAtATime * u.united);
    unite_blocks(tokens, first, last, u, stream_of(b.stream));
    const int tiles = static_cast<int>(key_tiles(b));
    const KeyReaders readers = far ? list_key_readers(tokens, first, last, tiles, u, space, stream_of(b.stream)) : no_key_readers(tiles, space, stream_of(b.stream));
    const Arguments a{b.q.data<bf16>(), b.k.data<bf16>(), b.v.data<bf16>(), b.out.data<bf16>(), b.dout.data<bf16>(), u, tokens.counts, b.lse.f32(), b.dq.data<bf16>(),
                      b.dk.f32(), b.dv.f32(), b.block_mass.defined() ? b.block_mass.f32() : nullptr, head_sums, first, last, groups, static_cast<int>(b.q.size(1)) / groups, b.scale,
                      b.dk.bytes() >= size_t{1} << 30, readers};
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(groups), 1, 1};
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(static_cast<unsigned>((last - first + u.united - 1) / u.united * groups));
    launch.blockDim = dim3(kThreads);
    launch.dynamicSmemBytes = kShared;
    launch.stream = stream_of(b.stream);
    launch.attrs = &cluster;
    launch.numAttrs = 1;
    check_cuda(cudaLaunchKernelEx(&launch, backward, a), "block_attention_backward_united");
    block_attention_backward_keys(b, first, readers);
  }
}

}  // namespace hyscale
