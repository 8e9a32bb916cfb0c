// Block attention backward on Hopper for neighbouring queries that share blocks, heads of 256 numbers: a thread block per (group of queries,
// group of heads), keys as rows of the products and the queries' heads (64, padded) as columns. With X^T = K Q^T and dP^T = V dO^T, P and
// dX 0 where a query does not read a key:
//   P = exp(scale X - lse), dX = scale P (dP - delta), delta[h] = dout[h] . out[h]
//   dq += dX K     dk(row) += dX^T Q     dv(row) += P^T dO
// Each of two warpgroups takes half of the heads for P and dX, half of the columns of dq, and dk or dv. Contributions to a row are summed
// over the queries and their heads before they leave the chip. The groups of heads are a cluster: each keeps the sums of P over its heads,
// and at the end they share out adding them up and taking the largest of every block.
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
  alignas(1024) unsigned char p[kTileBytes];   // [keys][heads]
  alignas(1024) unsigned char dx[kTileBytes];  // [keys][heads]
  float lse[kRows], delta[kRows];              // lse in units of log2; +inf for padding, whose P is then 0
  int shift[kRows];                            // of a head's query among the readers of a block
  float fours[kRows / 4][kKeys];               // sums of P over four neighbouring heads
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

enum Barrier { kReady = 1, kWritten, kConsumed };

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
    if (turn % 2 && thread < kKeys / 4) copy16(shared_address(s.slots[tile & 1][thread]), a.u.slots + (list + min(block, count - 1)) * kMostUnited, block < count);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const bool read = of_row[r].readers & 0x11111111u << token;
      const int row = first_row + 16 * r;
      const int64_t at = (static_cast<int64_t>(read ? of_row[r].row + token : 0) * a.groups + group) * kDims;
      const bf16* from = (turn % 2 ? a.v : a.k) + at + piece * 8;
#pragma unroll
      for (int b = 0; b < kColumns; ++b) copy16(shared_address(s.rows[stage][b]) + tile_offset(row, piece), from + b * 64, read);
      if (turn % 2 == 0 || piece != 0) continue;
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

// P and dX of the warpgroup's 32 heads for the 64 keys, and sums of P over fours of heads, to shared memory.
template <int kPart>
__device__ __forceinline__ void score_gradients(Shared& s, const Arguments& a, int tile) {
  const int stage = 2 * tile % kStages;
  const uint32_t* readers = s.readers[tile & 1];
  const int thread = thread_again(), lane = thread % 32, row = thread / 32 * 16 + lane / 4, column = kPart * 32 + lane % 4 * 2;
  float x[16], dp[16];
  pin(x);
  pin(dp);
  wgmma_begin();
#pragma unroll
  for (int kk = 0; kk < kDims / 16; ++kk)
    wgmma_n32<0, 0>(x, row_descriptor(shared_address(s.rows[stage][kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.q[kk / 4]) + kPart * 4096) + kk % 4 * 2, kk != 0);
#pragma unroll
  for (int kk = 0; kk < kDims / 16; ++kk)
    wgmma_n32<0, 0>(dp, row_descriptor(shared_address(s.rows[stage + 1][kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.dout[kk / 4]) + kPart * 4096) + kk % 4 * 2, kk != 0);
  wgmma_commit();
  wgmma_wait<0>();
  pin(x);
  pin(dp);
  barrier_arrive(&s.empty[stage + 1]);
  const float scale_log2 = a.scale * kLog2E;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = row + 8 * half;
    const uint32_t of_key = readers[key / 4] >> key % 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float p[2], dx[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int head = column + 8 * j + e, i = 4 * j + 2 * half + e;
        p[e] = of_key >> s.shift[head] & 1 ? exp2f(x[i] * scale_log2 - s.lse[head]) : 0.f;
        dx[e] = a.scale * p[e] * (dp[i] - s.delta[head]);
      }
      const uint32_t at = tile_offset(key, kPart * 4 + j) + lane % 4 * 4;
      *reinterpret_cast<__nv_bfloat162*>(s.p + at) = __floats2bfloat162_rn(p[0], p[1]);
      *reinterpret_cast<__nv_bfloat162*>(s.dx + at) = __floats2bfloat162_rn(dx[0], dx[1]);
      const float four = p[0] + p[1] + __shfl_xor_sync(~0u, p[0] + p[1], 1);
      if (lane % 2 == 0) s.fours[kPart * 8 + 2 * j + lane % 4 / 2][key] = four;
    }
  }
}

__device__ __forceinline__ float* head_sums_of(const Arguments& a, unsigned block) { return a.head_sums + static_cast<int64_t>(block) * a.u.united * a.u.k * 4; }

// Sums of P over the heads, into the places that the selections give the tile's blocks. 256 threads.
__device__ __forceinline__ void keep_head_sums(Shared& s, const Arguments& a, int tile, int selected, int thread) {
  for (int i = thread; i < kKeys * a.u.united; i += kMath) {
    const int key = i % kKeys, query = i / kKeys, block = key / 4;
    if (tile * (kKeys / 4) + block >= selected || !(s.readers[tile & 1][block] >> 4 * query & 1)) continue;
    float sum = 0;
    for (int four = query * a.heads / 4; four < (query + 1) * a.heads / 4; ++four) sum += s.fours[four][key];
    head_sums_of(a, blockIdx.x)[(query * a.u.k + s.slots[tile & 1][block][query]) * 4 + key % 4] = sum;
  }
}

// to(row) += left right for 64 columns; `left` [keys][heads], `right` [heads][columns].
__device__ __forceinline__ void add_rows(const unsigned char* left, const unsigned char* right, float* to, const int32_t* rows, int64_t stride, int lane) {
  float d[32];
  pin(d);
  wgmma_begin();
#pragma unroll
  for (int kk = 0; kk < kRows / 16; ++kk)
    wgmma_n64<0, 1>(d, row_descriptor(shared_address(left)) + kk * 2, column_descriptor(shared_address(right)) + kk * 128, kk != 0);
  wgmma_commit();
  wgmma_wait<0>();
  pin(d);
  for_each_line_of_fours(d, lane, [&](int row, int column, float x, float y, float z, float w) {
    if (rows[row] >= 0) add_four(to + rows[row] * stride + column, x, y, z, w);
  });
}

template <int kPart>
__device__ void consume(Shared& s, const Arguments& a, UnitedCounts count) {
  const int tiles = (count.all * 4 + kKeys - 1) / kKeys, first_summed = *a.readers.apart ? count.selected * 4 / kKeys : 0;
  load_statistics(s, a, kPart * kGroup + thread_again());
  named_sync(kReady, kMath);
  barrier_wait(&s.q_full, 0);
  float dq[2][32] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = 2 * tile % kStages;
    barrier_wait(&s.full[stage], tile / 2 & 1);
    barrier_wait(&s.full[stage + 1], tile / 2 & 1);
    score_gradients<kPart>(s, a, tile);
    fence_to_async();
    named_sync(kWritten, kMath);
#pragma unroll
    for (int i = 0; i < 2; ++i) pin(dq[i]);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int kk = 0; kk < kKeys / 16; ++kk)
        wgmma_n64<1, 1>(dq[i], column_descriptor(shared_address(s.dx)) + kk * 128, column_descriptor(shared_address(s.rows[stage][kPart * 2 + i])) + kk * 128, 1);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; ++i) pin(dq[i]);
    const int thread = thread_again();
    if (a.block_mass) keep_head_sums(s, a, tile, count.selected, kPart * kGroup + thread);
    const int64_t stride = int64_t{a.groups} * kDims;
    float* to = (kPart == 0 ? a.dk : a.dv) + blockIdx.x % a.groups * kDims;
#pragma unroll 1
    for (int b = 0; b < kColumns && tile >= first_summed; ++b)
      add_rows(kPart == 0 ? s.dx : s.p, kPart == 0 ? s.q[b] : s.dout[b], to + b * 64, s.to[tile & 1] + thread / 32 * 16, stride, thread % 32);
    barrier_arrive(&s.empty[stage]);
    named_sync(kConsumed, kMath);  // p, dx and fours are free again
  }
  const int thread = thread_again(), lane = thread % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = head_row(a, thread / 32 * 16 + lane / 4 + 8 * half);
    if (row < 0) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
        *reinterpret_cast<__nv_bfloat162*>(a.dq + row * kDims + (kPart * 2 + i) * 64 + 8 * j + lane % 4 * 2) = __floats2bfloat162_rn(dq[i][4 * j + 2 * half], dq[i][4 * j + 2 * half + 1]);
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
    for (uint64_t& b : s.empty) barrier_init(&b, kMath);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    produce(s, a, count, thread);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
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
