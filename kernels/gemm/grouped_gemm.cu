// Grouped products with tensor cores (mma.sync), for matrices of any size: a block finds its expert from the offsets on the device, so no count ever
// reaches the host. Tiles of 128 x 128 x 32, 8 warps of 64 x 32, three stages of cp.async; odd sizes are guarded.
#include "kernels/common/cuda.cuh"
#include "kernels/gemm/grouped_gemm_cuda.h"

namespace hyscale {
namespace {

constexpr int kM = 128, kN = 128, kK = 32, kStages = 3, kThreads = 256;
constexpr int kPitchK = kK + 8;    // of tiles stored [rows][kK]: 80 bytes, free of bank conflicts for ldmatrix
constexpr int kPitchMn = kM + 8;   // of tiles stored [kK][columns]

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void copy_16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], const void* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(at)));
}
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&r)[4], const void* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(at)));
}
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// One operand of a tile product. kMajor: stored [rows][K] (K dense); else [K][rows] (rows dense). Limits are exclusive.
template <bool kMajor>
struct Operand {
  const bf16* base;
  int64_t step;            // from one stored line to the next
  int64_t rows, depth;     // limits of the two directions
  static constexpr int kPitch = kMajor ? kPitchK : kPitchMn;
  static constexpr int kElements = kMajor ? kM * kPitchK : kK * kPitchMn;

  // Tile at (row, k) into shared memory; what lies outside becomes zero.
  __device__ void load(bf16* tile, int64_t row, int64_t k) const {
    constexpr int kLines = kMajor ? kM : kK, kChunks = (kMajor ? kK : kM) / 8;
    for (int i = threadIdx.x; i < kLines * kChunks; i += kThreads) {
      const int line = i / kChunks, chunk = i % kChunks * 8;
      const int64_t along = kMajor ? row + line : k + line, across = (kMajor ? k : row) + chunk;
      const int64_t along_limit = kMajor ? rows : depth, across_limit = kMajor ? depth : rows;
      const int64_t valid = along < along_limit ? min(max(across_limit - across, int64_t{0}), int64_t{8}) : 0;
      copy_16(tile + line * kPitch + chunk, valid > 0 ? base + along * step + across : base, static_cast<int>(valid) * 2);
    }
  }
};

// c[row, column] for a 128 x 128 tile; accumulators of a warp: [4][4] fragments of 16 x 8.
template <bool kAMajor, bool kBMajor>
__device__ void tile_product(const Operand<kAMajor>& a, const Operand<kBMajor>& b, int64_t row, int64_t column, int64_t depth, float (&c)[4][4][4], bf16* shared) {
  constexpr int kStage = Operand<kAMajor>::kElements + Operand<kBMajor>::kElements;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp / 4 * 64, warp_n = warp % 4 * 32;
  const int64_t steps = (depth + kK - 1) / kK;
  const auto fetch = [&](int64_t step) {
    if (step < steps) {
      bf16* stage = shared + step % kStages * kStage;
      a.load(stage, row, step * kK);
      b.load(stage + Operand<kAMajor>::kElements, column, step * kK);
    }
    asm volatile("cp.async.commit_group;\n");
  };
  for (int s = 0; s < kStages - 1; ++s) fetch(s);
  for (int64_t step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kStages - 2));
    __syncthreads();
    fetch(step + kStages - 1);
    const bf16 *tile_a = shared + step % kStages * kStage, *tile_b = tile_a + Operand<kAMajor>::kElements;
#pragma unroll
    for (int k = 0; k < kK; k += 16) {
      uint32_t fa[4][4], fb[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int m = warp_m + 16 * i;
        if constexpr (kAMajor)
          ldmatrix(fa[i], tile_a + (m + lane % 16) * kPitchK + k + lane / 16 * 8);
        else
          ldmatrix_transposed(fa[i], tile_a + (k + lane % 8 + lane / 16 * 8) * kPitchMn + m + lane / 8 % 2 * 8);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int n = warp_n + 16 * j;
        if constexpr (kBMajor)
          ldmatrix(fb[j], tile_b + (n + lane % 8 + lane / 16 * 8) * kPitchK + k + lane / 8 % 2 * 8);
        else
          ldmatrix_transposed(fb[j], tile_b + (k + lane % 16) * kPitchMn + n + lane / 16 * 8);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) mma(c[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
    }
  }
  asm volatile("cp.async.wait_group 0;\n");
  __syncthreads();
}

// Calls store(row, column, value) for the tile's elements that this thread holds.
template <typename Store>
__device__ void for_each_element(const float (&c)[4][4][4], Store store) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp / 4 * 64, warp_n = warp % 4 * 32;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) store(warp_m + 16 * i + lane / 4 + e / 2 * 8, warp_n + 8 * j + lane % 4 * 2 + e % 2, c[i][j][e]);
}

// Row tile `tile` of all groups together: its expert and the rows of it. False beyond the last.
__device__ bool find_group(const int32_t* __restrict__ offsets, int64_t num_experts, int64_t tile, int64_t& expert, int64_t& row, int64_t& end) {
  for (expert = 0; expert < num_experts; ++expert) {
    const int64_t first = offsets[expert], tiles = (offsets[expert + 1] - first + kM - 1) / kM;
    if (tile < tiles) {
      row = first + tile * kM;
      end = offsets[expert + 1];
      return true;
    }
    tile -= tiles;
  }
  return false;
}

// out[R, N] = in[R, K] op(w[e]): forward has w stored [N][K], dgrad [K][N].
template <bool kForward>
__global__ void __launch_bounds__(kThreads) grouped_rows_kernel(const bf16* __restrict__ in, const bf16* __restrict__ w, bf16* __restrict__ out,
                                                                const int32_t* __restrict__ offsets, int64_t num_experts, int64_t n, int64_t k) {
  extern __shared__ __align__(16) bf16 shared[];
  int64_t expert, row, end;
  if (!find_group(offsets, num_experts, blockIdx.x, expert, row, end)) return;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kN;
  float c[4][4][4] = {};
  tile_product(Operand<true>{in, k, end, k}, Operand<kForward>{w + expert * n * k, kForward ? k : n, n, k}, row, column, k, c, shared);
  for_each_element(c, [&](int i, int j, float v) {
    if (row + i < end && column + j < n) out[(row + i) * n + column + j] = __float2bfloat16_rn(v);
  });
}

// dw[e][n, k] += sum over rows of the group of dy[row, n] x[row, k].
__global__ void __launch_bounds__(kThreads) grouped_wgrad_kernel(const bf16* __restrict__ dy, const bf16* __restrict__ x, float* __restrict__ dw,
                                                                 const int32_t* __restrict__ offsets, int64_t n, int64_t k) {
  extern __shared__ __align__(16) bf16 shared[];
  const int64_t expert = blockIdx.z, first = offsets[expert], rows = offsets[expert + 1] - first;
  if (rows == 0) return;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kM, column = static_cast<int64_t>(blockIdx.x) * kN;
  float c[4][4][4] = {};
  tile_product(Operand<false>{dy + first * n, n, n, rows}, Operand<false>{x + first * k, k, k, rows}, row, column, rows, c, shared);
  float* out = dw + expert * n * k;
  for_each_element(c, [&](int i, int j, float v) {
    if (row + i < n && column + j < k) out[(row + i) * k + column + j] += v;
  });
}

// Checks the operands; true: bf16, false: f32.
bool is_bf16(const GroupedGemm& g, DType weights) {
  const DType type = g.x.dtype();
  HYSCALE_CHECK((type == DType::bf16 || type == DType::f32) && g.y.dtype() == type && g.w.dtype() == weights, "grouped gemm of x ", to_string(g.x), ", w ", to_string(g.w), ", y ",
                to_string(g.y), "; expected all bf16 or all f32, and gradients of weights f32");
  HYSCALE_CHECK(type == DType::f32 || (g.x.size(1) % 8 == 0 && g.y.size(1) % 8 == 0), "grouped gemm moves 8 elements at a time: x ", to_string(g.x), ", y ", to_string(g.y));
  HYSCALE_CHECK(g.x.is_contiguous() && g.y.is_contiguous() && g.w.is_contiguous(), "grouped gemm of strided operands");
  return type == DType::bf16;
}

template <typename Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), "grouped gemm");
}

template <bool kForward>
void launch_rows(const GroupedGemm& g, const Tensor& in, const Tensor& out) {
  const bool narrow = is_bf16(g, g.x.dtype());
  const int64_t rows = in.size(0), experts = g.w.size(0);
  if (rows == 0) return;
  if (!narrow) return grouped_gemm_rows_plain(g, in, out, kForward);
  if (grouped_gemm_fits_hopper(g)) return grouped_gemm_rows_hopper(g, in, out, kForward);
  const size_t shared = kStages * static_cast<size_t>(Operand<true>::kElements + Operand<kForward>::kElements) * sizeof(bf16);
  allow_shared(grouped_rows_kernel<kForward>, shared);
  // Every group may leave one tile partly empty.
  const int64_t row_tiles = (rows + kM - 1) / kM + experts;
  const dim3 grid(static_cast<unsigned>(row_tiles), grid_for(out.size(1), kN));
  grouped_rows_kernel<kForward><<<grid, kThreads, shared, stream_of(g.stream)>>>(in.data<bf16>(), g.w.data<bf16>(), out.data<bf16>(), g.offsets.i32(), experts, out.size(1),
                                                                                 in.size(1));
  check_launch("grouped gemm");
}

}  // namespace

void grouped_gemm_forward_cuda(const GroupedGemm& g) { launch_rows<true>(g, g.x, g.y); }
void grouped_gemm_dgrad_cuda(const GroupedGemm& g) { launch_rows<false>(g, g.y, g.x); }

void grouped_gemm_wgrad_cuda(const GroupedGemm& g) {
  const bool narrow = is_bf16(g, DType::f32);
  if (g.x.size(0) == 0) return;
  if (!narrow) return grouped_gemm_wgrad_plain(g);
  if (grouped_gemm_fits_hopper(g)) return grouped_gemm_wgrad_hopper(g);
  const size_t shared = kStages * static_cast<size_t>(2 * Operand<false>::kElements) * sizeof(bf16);
  allow_shared(grouped_wgrad_kernel, shared);
  const dim3 grid(grid_for(g.w.size(2), kN), grid_for(g.w.size(1), kM), static_cast<unsigned>(g.w.size(0)));
  grouped_wgrad_kernel<<<grid, kThreads, shared, stream_of(g.stream)>>>(g.y.data<bf16>(), g.x.data<bf16>(), g.w.f32(), g.offsets.i32(), g.w.size(1), g.w.size(2));
  check_launch("grouped gemm wgrad");
}

}  // namespace hyscale
