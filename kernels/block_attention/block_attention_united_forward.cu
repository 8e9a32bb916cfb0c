// Block attention forward on Hopper for neighbouring queries that share blocks, heads of 256 numbers: one thread block per (group of
// queries, group of heads), whose 64 rows are five queries' 12 heads (Qwen3.8). A producer warpgroup gathers the union of their blocks, 64
// rows of K and of V in turn; warpgroup 0 computes scores and softmax, hiding from every query what it does not read; both warpgroups hold
// half of the value columns.
//
// What bounds it: a row of K and V is 1 KiB per group of heads. Without anything shared a query's 2051 rows are 4.2 MB, 0.84 us of an
// H200's 5 TB/s from L2, and its share of the products 2051 x 64 x 256 x 2 x 2 x 2 FLOP = 268 MFLOP, 0.34 us at 800 TFLOP/s: below
// the gather even where queries share nothing. Both shrink by up to five where they share.
#include "kernels/block_attention/block_attention_cuda.h"
#include "kernels/block_attention/united_blocks.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"

namespace hyscale {
namespace {

using namespace hopper;
constexpr int kThreads = 384, kMath = 256, kGroup = 128;
constexpr int kKeys = 64, kRows = 64, kDims = 256, kColumns = kDims / 64, kStages = 5, kAhead = 2;
constexpr float kLog2E = 1.4426950408889634f;

struct Shared {
  alignas(1024) unsigned char q[kColumns][kTileBytes];
  alignas(1024) unsigned char rows[kStages][kColumns][kTileBytes];  // of K and of V in turn
  alignas(1024) unsigned char p[kTileBytes];                        // [rows][keys]
  uint32_t readers[kStages][kKeys / 4];                             // of the blocks, beside their keys
  float rescale[kRows], inverse_sum[kRows];
  uint64_t q_full, full[kStages], empty[kStages];
};

struct Arguments {
  const bf16 *q, *k, *v;
  UnitedBlocks u;
  bf16* out;
  float* lse;
  int64_t first, last;  // queries
  int groups, heads;    // heads of a group
  float scale_log2;
};

enum Barrier { kProbabilities = 1, kConsumed, kScores };

// Row of q, out and lse that is row `row` of the tile; -1 where it is padding.
__device__ __forceinline__ int64_t head_row(const Arguments& a, int row) {
  const int64_t t = a.first + static_cast<int64_t>(blockIdx.x / a.groups) * a.u.united + row / a.heads;
  return row < a.u.united * a.heads && t < a.last ? (t * a.groups + blockIdx.x % a.groups) * a.heads + row % a.heads : -1;
}

__device__ void produce(Shared& s, const Arguments& a, int count, int thread) {
  const int piece = thread % 8, first_row = thread / 8, group = static_cast<int>(blockIdx.x) % a.groups;
#pragma unroll 1
  for (int row = first_row; row < kRows; row += 16) {
    const int64_t from = head_row(a, row);
    for (int b = 0; b < kColumns; ++b) copy16(shared_address(s.q[b]) + tile_offset(row, piece), a.q + max(from, int64_t{0}) * kDims + b * 64 + piece * 8, from >= 0);
  }
  copies_done();
  fence_to_async();
  barrier_arrive(&s.q_full);
  const UnitedBlock* blocks = a.u.blocks + static_cast<int64_t>(blockIdx.x / a.groups) * a.u.most();
  const int turns = (count * 4 + kKeys - 1) / kKeys * 2;
  const auto publish = [&](int turn) {
    fence_to_async();
    barrier_arrive(&s.full[turn % kStages]);
  };
  UnitedBlock of_row[4];
  const auto fetch = [&](int tile) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int block = tile * (kKeys / 4) + first_row / 4 + 4 * r;
      of_row[r] = block < count ? blocks[block] : UnitedBlock{0, 0};
    }
  };
  fetch(0);
  for (int turn = 0; turn < turns; ++turn) {
    const int stage = turn % kStages;
    if (turn >= kStages) barrier_wait(&s.empty[stage], (turn / kStages - 1) & 1);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int token = first_row % 4;
      const bool read = of_row[r].readers & 0x11111111u << token;
      const bf16* from = (turn % 2 ? a.v : a.k) + (static_cast<int64_t>(read ? of_row[r].row + token : 0) * a.groups + group) * kDims + piece * 8;
      const uint32_t to = shared_address(s.rows[stage]) + tile_offset(first_row + 16 * r, piece);
#pragma unroll
      for (int b = 0; b < kColumns; ++b) copy16(to + b * kTileBytes, from + b * 64, read);
      if (piece == 0 && token == 0) s.readers[stage][first_row / 4 + 4 * r] = of_row[r].readers;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (turn % 2) fetch(turn / 2 + 1);
    if (turn < kAhead) continue;
    asm volatile("cp.async.wait_group %0;" ::"n"(kAhead) : "memory");
    publish(turn - kAhead);
  }
  copies_done();
  for (int turn = max(0, turns - kAhead); turn < turns; ++turn) publish(turn);
}

struct Softmax {
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {};  // of the thread's two rows; sums are of its own columns
};

// Scores of one tile to probabilities in shared memory; leaves the factors by which earlier sums shrink. shift: of the rows' queries.
__device__ __forceinline__ void probabilities(Shared& s, Softmax& state, float (&x)[32], const uint32_t* readers, const int (&shift)[2], float scale_log2, int thread) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t of_block = readers[2 * j + lane % 4 / 2] >> lane % 2 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int e = 0; e < 2; ++e) x[4 * j + 2 * half + e] = of_block >> shift[half] >> e & 1 ? x[4 * j + 2 * half + e] * scale_log2 : -INFINITY;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = state.most[half];
#pragma unroll
    for (int j = 0; j < 8; ++j) most = fmaxf(most, fmaxf(x[4 * j + 2 * half], x[4 * j + 2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float base = most == -INFINITY ? 0 : most;  // nothing read so far
    const float factor = exp2f(state.most[half] - base);
    state.most[half] = most;
    state.sum[half] *= factor;
    if (lane % 4 == 0) s.rescale[row + 8 * half] = factor;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float p0 = exp2f(x[4 * j + 2 * half] - base), p1 = exp2f(x[4 * j + 2 * half + 1] - base);
      state.sum[half] += p0 + p1;
      *reinterpret_cast<__nv_bfloat162*>(s.p + tile_offset(row + 8 * half, j) + column * 2) = __floats2bfloat162_rn(p0, p1);
    }
  }
}

template <int kPart>  // which half of the value columns; part 0 makes the probabilities
__device__ void consume(Shared& s, const Arguments& a, int count, int thread) {
  const int tiles = (count * 4 + kKeys - 1) / kKeys;
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
  // Padding rows take the shift of a query that reads nothing, or of one that exists: nobody looks at them.
  const int shift[2] = {min(row / a.heads, kMostUnited - 1) * 4, min((row + 8) / a.heads, kMostUnited - 1) * 4};
  float out[64] = {};
  Softmax state;
  if (kPart == 0) barrier_wait(&s.q_full, 0);
  for (int tile = 0; tile < tiles; ++tile) {
    int stage = 2 * tile % kStages;
    if (kPart == 0) {
      barrier_wait(&s.full[stage], 2 * tile / kStages & 1);
      float x[32];
      pin(x);
      wgmma_begin();
#pragma unroll
      for (int kk = 0; kk < kDims / 16; ++kk)
        wgmma_n64<0, 0>(x, row_descriptor(shared_address(s.q[kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.rows[stage][kk / 4])) + kk % 4 * 2, kk != 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin(x);
      if (tile > 0) named_sync(kConsumed, kMath);  // the other half has read the last tile's probabilities
      probabilities(s, state, x, s.readers[stage], shift, a.scale_log2, thread);
      fence_to_async();
    } else if (tile > 0) {
      named_sync(kConsumed, kMath);
    }
    barrier_arrive(&s.empty[stage]);
    named_sync(kProbabilities, kMath);
    const float factor0 = s.rescale[row], factor1 = s.rescale[row + 8];
#pragma unroll
    for (int i = 0; i < 64; ++i) out[i] *= i & 2 ? factor1 : factor0;
    stage = (2 * tile + 1) % kStages;
    barrier_wait(&s.full[stage], (2 * tile + 1) / kStages & 1);
    pin(out);
    wgmma_begin();
#pragma unroll
    for (int kk = 0; kk < kKeys / 16; ++kk)
      wgmma_n128<0, 1>(out, row_descriptor(shared_address(s.p)) + kk * 2, column_descriptor(shared_address(s.rows[stage][kPart * 2])) + kk * 128, 1);
    wgmma_commit();
    wgmma_wait<0>();
    pin(out);
    barrier_arrive(&s.empty[stage]);
  }
  if (kPart == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (lane % 4 != 0) continue;
      const int64_t to = head_row(a, row + 8 * half);
      s.inverse_sum[row + 8 * half] = sum > 0 ? 1 / sum : 0;  // 0: a query without keys
      if (to >= 0) a.lse[to] = state.most[half] * 0.6931471805599453f + logf(sum);
    }
  }
  named_sync(kScores, kMath);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t to = head_row(a, row + 8 * half);
    if (to < 0) continue;
    const float factor = s.inverse_sum[row + 8 * half];
#pragma unroll
    for (int j = 0; j < 16; ++j)
      *reinterpret_cast<__nv_bfloat162*>(a.out + to * kDims + kPart * 128 + 8 * j + column) = __floats2bfloat162_rn(out[4 * j + 2 * half] * factor, out[4 * j + 2 * half + 1] * factor);
  }
}

__global__ void __launch_bounds__(kThreads, 1) forward(const Arguments a) {
  extern __shared__ unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x), warpgroup = thread / kGroup;
  const int count = a.u.counts[blockIdx.x / a.groups].all;
  if (thread == 0) {
    barrier_init(&s.q_full, kGroup);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], kGroup);
      barrier_init(&s.empty[i], kMath);
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    produce(s, a, count, thread);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    if (warpgroup == 1) consume<0>(s, a, count, thread - kGroup);
    else consume<1>(s, a, count, thread - 2 * kGroup);
  }
}

}  // namespace

void block_attention_forward_united(const BlockAttentionForward& f) {
  constexpr size_t kShared = sizeof(Shared) + 1024;
  static_assert(kShared <= 232448);
  const int groups = static_cast<int>(f.k.size(1));
  const AttendedTokens tokens(f.blocks);
  Workspace workspace(f.workspace);
  const UnitedBlocks u = take_united_blocks(f, workspace, false);
  check_cuda(cudaFuncSetAttribute(forward, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)), "shared memory of block_attention_forward");
  for (int64_t first = 0, last; first < f.q.size(0); first = last) {
    last = std::min(f.q.size(0), first + kUnitedAtATime * u.united);
    unite_blocks(tokens, first, last, u, stream_of(f.stream));
    const Arguments a{f.q.data<bf16>(), f.k.data<bf16>(), f.v.data<bf16>(), u, f.out.data<bf16>(), f.lse.f32(), first, last, groups, static_cast<int>(f.q.size(1)) / groups, f.scale * kLog2E};
    forward<<<static_cast<unsigned>((last - first + u.united - 1) / u.united * groups), kThreads, kShared, stream_of(f.stream)>>>(a);
    check_launch("block_attention_forward_united");
  }
}

}  // namespace hyscale
