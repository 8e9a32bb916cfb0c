// Grouped products on Hopper: tiles of 128 x 256, two warpgroups of 64 x 256 on the tensor cores, one thread that feeds them
// steps of 64 through four stages of bulk copies. Blocks stay and take tile after tile: the next tile's operands arrive while
// the last one's results are stored. Each finds its expert from the offsets on the device. Neighbouring tiles share operands:
// 16 row tiles go over the columns together, so that both stay in L2.
#include "kernels/common/tensor_map.cuh"
#include "kernels/gemm/grouped_gemm_cuda.h"

namespace hyscale {
namespace {

using namespace hopper;
constexpr int kM = 128, kN = 256, kK = 64, kStages = 4, kGroup = 128, kThreads = 3 * kGroup, kMath = 2 * kGroup, kRowsTogether = 16;
constexpr int kStageBytes = (kM + kN) * kK * 2;

struct __align__(1024) Shared {
  unsigned char a[kStages][kM / 64][kTileBytes];
  unsigned char b[kStages][kN / 64][kTileBytes];
  uint64_t full[kStages], empty[kStages];
};

// forward: out[R, N] = x w[e]^T   dgrad: out[R, K] = dy w[e]   wgrad: dw[e] += dy^T x
enum class Kind { forward, dgrad, wgrad };

struct Problem {
  const int32_t* offsets;
  void* out;  // bf16 rows, or f32 [E, rows of a tile's matrix, columns]
  int64_t num_experts, row_tiles, column_tiles, columns, depth;  // columns of the result; depth of the contraction (not of wgrad)
  int64_t tile_rows;  // wgrad: rows of dw[e]
};

// A tile of the result and where its operands begin.
struct Tile {
  int64_t row, column, row_end;         // of the result
  int64_t a_row, a_depth, b_row, b_depth;
  int64_t depth;                        // of its contraction
  int64_t expert;
  __device__ int steps() const { return static_cast<int>((depth + kK - 1) / kK); }
};

// Number -> row tile and column tile of one matrix.
__device__ __forceinline__ void place(int64_t number, int64_t row_tiles, int64_t columns, int64_t& row_tile, int64_t& column_tile) {
  const int64_t together = number / (kRowsTogether * columns) * kRowsTogether, rows = min(static_cast<int64_t>(kRowsTogether), row_tiles - together);
  const int64_t within = number - together * columns;
  row_tile = together + within % rows;
  column_tile = within / rows;
}

// False where the number is beyond the tiles that the groups really have.
template <Kind kKind>
__device__ __forceinline__ bool find_tile(const Problem& p, int64_t number, Tile& t) {
  int64_t row_tile, column_tile;
  if constexpr (kKind == Kind::wgrad) {
    const int64_t tiles = p.row_tiles * p.column_tiles;
    t.expert = number / tiles;
    place(number % tiles, p.row_tiles, p.column_tiles, row_tile, column_tile);
    const int64_t first = p.offsets[t.expert];
    t.row = row_tile * kM;
    t.row_end = p.tile_rows;
    t.depth = p.offsets[t.expert + 1] - first;
    t.column = column_tile * kN;
    t.a_row = t.row, t.b_row = t.column, t.a_depth = t.b_depth = first;
    return t.depth > 0;
  }
  place(number, p.row_tiles, p.column_tiles, row_tile, column_tile);
  for (t.expert = 0; t.expert < p.num_experts; ++t.expert) {
    const int64_t first = p.offsets[t.expert], end = p.offsets[t.expert + 1], tiles = (end - first + kM - 1) / kM;
    if (row_tile >= tiles) {
      row_tile -= tiles;
      continue;
    }
    t.row = first + row_tile * kM;
    t.row_end = end;
    t.depth = p.depth;
    t.column = column_tile * kN;
    t.a_row = t.row, t.a_depth = 0;
    t.b_row = kKind == Kind::forward ? t.expert * p.columns + t.column : t.column;
    t.b_depth = kKind == Kind::forward ? 0 : t.expert * p.depth;
    return true;
  }
  return false;
}

// One operand's share of a step. kAlong: the contraction lies along the rows of memory, else across them.
template <bool kAlong, int kRows>
__device__ __forceinline__ void load_operand(unsigned char (*tiles)[kTileBytes], const CUtensorMap* map, uint64_t* full, int64_t row, int64_t depth) {
  if constexpr (kAlong) {
    load_box(tiles[0], map, full, static_cast<int>(depth), row);
  } else {
#pragma unroll
    for (int i = 0; i < kRows / 64; ++i) load_box(tiles[i], map, full, static_cast<int>(row + 64 * i), depth);
  }
}

// The last step of a group may hold rows of the next one, or what lies behind all groups: they become zero, whatever they were.
__device__ __forceinline__ void clear_lines(Shared& s, int stage, int first, int thread) {
  for (int i = thread; i < (kK - first) * (kM + kN) / 64 * 8; i += kMath) {
    const int line = first + i / 8 % (kK - first), tile = i / 8 / (kK - first);
    unsigned char* at = tile < kM / 64 ? s.a[stage][tile] : s.b[stage][tile - kM / 64];
    *reinterpret_cast<uint4*>(at + line * 128 + i % 8 * 16) = make_uint4(0, 0, 0, 0);
  }
  fence_to_async();
  named_sync(1, kMath);
}

// Trades among the four threads of a quad: thread c gets numbers c of the four, so that it holds eight neighbouring columns.
__device__ __forceinline__ void trade_in_quad(uint32_t (&x)[4], int lane) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = lane & bit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t received = __shfl_xor_sync(~0u, upper ? x[i] : x[i + bit], bit);
      if (upper) x[i] = received;
      else x[i + bit] = received;
    }
  }
}

template <Kind kKind>
__device__ __forceinline__ void store(const Problem& p, const Tile& t, const float (&d)[128], int group, int thread) {
  const int lane = thread % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = t.row + group * 64 + thread / 32 * 16 + lane / 4 + 8 * half;
    const bool inside = row < t.row_end;
    if constexpr (kKind == Kind::wgrad) {
      if (!inside) continue;
      float* to = static_cast<float*>(p.out) + (t.expert * p.tile_rows + row) * p.columns + t.column + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        if (t.column + 8 * j + lane % 4 * 2 >= p.columns) continue;
        float2* at = reinterpret_cast<float2*>(to + 8 * j);
        const float2 old = *at;
        *at = make_float2(old.x + d[4 * j + 2 * half], old.y + d[4 * j + 2 * half + 1]);
      }
    } else {
      bf16* to = static_cast<bf16*>(p.out) + row * p.columns + t.column + lane % 4 * 8;
#pragma unroll
      for (int j = 0; j < 32; j += 4) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const __nv_bfloat162 pair = __floats2bfloat162_rn(d[4 * (j + i) + 2 * half], d[4 * (j + i) + 2 * half + 1]);
          x[i] = *reinterpret_cast<const uint32_t*>(&pair);
        }
        trade_in_quad(x, lane);
        if (inside && t.column + 8 * j + lane % 4 * 8 < p.columns) *reinterpret_cast<uint4*>(to + 8 * j) = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  }
}

template <Kind kKind>
__global__ void __launch_bounds__(kThreads, 1) grouped_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, const Problem p, int64_t tiles) {
  constexpr bool kA = kKind != Kind::wgrad, kB = kKind == Kind::forward;  // the contraction lies along the rows
  extern __shared__ unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], 2);
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  Tile t;
  int64_t step_number = 0;  // of all tiles of the block
  if (thread < kGroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread != 0) return;
    for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
      if (!find_tile<kKind>(p, number, t)) continue;
      const int steps = t.steps();
      for (int step = 0; step < steps; ++step, ++step_number) {
        const int stage = static_cast<int>(step_number % kStages);
        if (step_number >= kStages) barrier_wait(&s.empty[stage], static_cast<int>((step_number / kStages - 1) & 1));
        barrier_expect(&s.full[stage], kStageBytes);
        load_operand<kA, kM>(s.a[stage], &a_map, &s.full[stage], t.a_row, t.a_depth + int64_t{step} * kK);
        load_operand<kB, kN>(s.b[stage], &b_map, &s.full[stage], t.b_row, t.b_depth + int64_t{step} * kK);
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int group = thread / kGroup - 1, lane_thread = thread % kGroup;
  for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    if (!find_tile<kKind>(p, number, t)) continue;
    const int steps = t.steps();
    float d[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) d[i] = 0;
    pin(d);
    for (int step = 0; step < steps; ++step, ++step_number) {
      const int stage = static_cast<int>(step_number % kStages);
      barrier_wait(&s.full[stage], static_cast<int>(step_number / kStages & 1));
      if constexpr (kKind == Kind::wgrad)
        if (step + 1 == steps && t.depth % kK != 0) clear_lines(s, stage, static_cast<int>(t.depth % kK), thread - kGroup);
      wgmma_begin();
      const uint32_t a = shared_address(s.a[stage][group]), b = shared_address(s.b[stage]);
#pragma unroll
      for (int kk = 0; kk < kK / 16; ++kk)
        wgmma_n256<!kA, !kB>(d, (kA ? row_descriptor(a) + kk * 2 : column_descriptor(a) + kk * 128), (kB ? row_descriptor(b) + kk * 2 : column_descriptor(b) + kk * 128), 1);
      wgmma_commit();
      if (step + 1 < steps) {
        wgmma_wait<1>();
        if (step > 0 && lane_thread == 0) barrier_arrive(&s.empty[(step_number - 1) % kStages]);
      } else {
        wgmma_wait<0>();
        if (lane_thread == 0) {
          if (step > 0) barrier_arrive(&s.empty[(step_number - 1) % kStages]);
          barrier_arrive(&s.empty[stage]);
        }
      }
    }
    pin(d);
    store<kKind>(p, t, d, group, lane_thread);
  }
}

constexpr int kShared = sizeof(Shared) + 1024;

template <Kind kKind>
void launch(const GroupedGemm& g, const CUtensorMap& a, const CUtensorMap& b, const Problem& p, int64_t tiles) {
  const auto kernel = grouped_kernel<kKind>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared), "grouped gemm");
  int device = 0, processors = 0;
  check_cuda(cudaGetDevice(&device), "grouped gemm");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "grouped gemm");
  kernel<<<static_cast<unsigned>(std::min<int64_t>(tiles, processors)), kThreads, kShared, stream_of(g.stream)>>>(a, b, p, tiles);
  check_launch("grouped gemm");
}

}  // namespace

void grouped_gemm_rows_hopper(const GroupedGemm& g, const Tensor& in, const Tensor& out, bool forward) {
  const int64_t experts = g.w.size(0), n = g.w.size(1), k = g.w.size(2), rows = in.size(0);
  Problem p{g.offsets.i32(), out.raw(), experts, (rows + kM - 1) / kM + experts, 0, out.size(1), in.size(1), 0};  // each group may leave a tile partly empty
  p.column_tiles = (p.columns + kN - 1) / kN;
  const CUtensorMap a = map_of_rows(in.raw(), rows, in.size(1), in.size(1), kM), b = map_of_rows(g.w.raw(), experts * n, k, k, forward ? kN : kK);
  const int64_t tiles = p.row_tiles * p.column_tiles;
  forward ? launch<Kind::forward>(g, a, b, p, tiles) : launch<Kind::dgrad>(g, a, b, p, tiles);
}

void grouped_gemm_wgrad_hopper(const GroupedGemm& g) {
  const int64_t experts = g.w.size(0), n = g.w.size(1), k = g.w.size(2), rows = g.x.size(0);
  const Problem p{g.offsets.i32(), g.w.raw(), experts, (n + kM - 1) / kM, (k + kN - 1) / kN, k, 0, n};
  const CUtensorMap a = map_of_rows(g.y.raw(), rows, n, n, kK), b = map_of_rows(g.x.raw(), rows, k, k, kK);
  launch<Kind::wgrad>(g, a, b, p, experts * p.row_tiles * p.column_tiles);
}

}  // namespace hyscale
