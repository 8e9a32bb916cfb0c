// Grouped products on Hopper: tiles of 128 x 256, two warpgroups of 64 x 256 on the tensor cores, a third that feeds them
// steps of 64 through four stages. Blocks find their expert from the offsets on the device. Neighbouring blocks share
// operands: 16 row tiles go over the columns together, so that both stay in L2.
#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"
#include "kernels/gemm/grouped_gemm_cuda.h"

namespace hyscale {
namespace {

using namespace hopper;
constexpr int kM = 128, kN = 256, kK = 64, kStages = 4, kAhead = kStages - 2, kGroup = 128, kThreads = 3 * kGroup, kRowsTogether = 16;

struct __align__(1024) Shared {
  unsigned char a[kStages][kM / 64][kTileBytes];
  unsigned char b[kStages][kN / 64][kTileBytes];
  uint64_t full[kStages], empty[kStages];
};

// One operand: a matrix whose lines are either rows of the tile, with the contraction along them, or the contraction, with
// rows of the tile along them. Limits are exclusive; what lies outside is zero.
template <bool kContractionAlong>
struct Operand {
  const bf16* base;
  int64_t step;         // from one line to the next
  int64_t rows, depth;  // limits of tile rows and contraction

  // kRows x kK numbers from (row, k) on into tiles of 64 lines.
  template <int kRows>
  __device__ __forceinline__ void load(unsigned char (*tiles)[kTileBytes], int64_t row, int64_t k, int thread) const {
    constexpr int kLines = kContractionAlong ? kRows : kK, kPieces = (kContractionAlong ? kK : kRows) / 8;
#pragma unroll 4
    for (int i = thread; i < kLines * kPieces; i += kGroup) {
      const int line = i / kPieces, piece = i % kPieces;
      const int64_t r = kContractionAlong ? row + line : row + piece * 8, c = kContractionAlong ? k + piece * 8 : k + line;
      const bool valid = r < rows && c < depth;
      const bf16* from = base + (kContractionAlong ? r * step + c : c * step + r);
      const uint32_t tile = shared_address(tiles[kContractionAlong ? line / 64 : piece / 8]);
      copy16(tile + tile_offset(kContractionAlong ? line % 64 : line, piece % 8), valid ? from : base, valid);
    }
  }
};

template <bool kA, bool kB>
__device__ void produce(Shared& s, const Operand<kA>& a, const Operand<kB>& b, int64_t row, int64_t column, int steps, int thread) {
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages;
    if (step >= kStages) barrier_wait(&s.empty[stage], (step / kStages - 1) & 1);
    a.template load<kM>(s.a[stage], row, static_cast<int64_t>(step) * kK, thread);
    b.template load<kN>(s.b[stage], column, static_cast<int64_t>(step) * kK, thread);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (step < kAhead) continue;
    asm volatile("cp.async.wait_group %0;" ::"n"(kAhead) : "memory");
    fence_to_async();
    barrier_arrive(&s.full[(step - kAhead) % kStages]);
  }
  copies_done();
  fence_to_async();
  for (int step = max(0, steps - kAhead); step < steps; ++step) barrier_arrive(&s.full[step % kStages]);
}

template <bool kA, bool kB>
__device__ __forceinline__ void multiply(Shared& s, float (&d)[128], int steps, int group, int thread) {
#pragma unroll
  for (int i = 0; i < 128; ++i) d[i] = 0;
  pin(d);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages;
    barrier_wait(&s.full[stage], step / kStages & 1);
    wgmma_begin();
    const uint32_t a = shared_address(s.a[stage][group]), b = shared_address(s.b[stage]);
#pragma unroll
    for (int kk = 0; kk < kK / 16; ++kk)
      wgmma_n256<!kA, !kB>(d, (kA ? row_descriptor(a) + kk * 2 : column_descriptor(a) + kk * 128), (kB ? row_descriptor(b) + kk * 2 : column_descriptor(b) + kk * 128), 1);
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0 && thread == 0) barrier_arrive(&s.empty[(step - 1) % kStages]);
  }
  wgmma_wait<0>();
  pin(d);
}

// store(row, column, two neighbouring numbers) for what this thread holds of the tile.
template <typename Store>
__device__ __forceinline__ void for_each_pair(const float (&d)[128], int group, int thread, Store store) {
  const int row = group * 64 + thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int j = 0; j < 32; ++j) store(row + 8 * half, column + 8 * j, d[4 * j + 2 * half], d[4 * j + 2 * half + 1]);
}

template <bool kA, bool kB, typename Store>
__device__ __forceinline__ void tile_product(const Operand<kA>& a, const Operand<kB>& b, int64_t row, int64_t column, int64_t depth, Store store) {
  extern __shared__ unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x), steps = static_cast<int>((depth + kK - 1) / kK);
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], kGroup);
      barrier_init(&s.empty[i], 2);
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (thread < kGroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    produce(s, a, b, row, column, steps, thread);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    const int group = thread / kGroup - 1;
    float d[128];
    multiply<kA, kB>(s, d, steps, group, thread % kGroup);
    for_each_pair(d, group, thread % kGroup, store);
  }
}

// Block number -> row tile of all groups together, and column tile.
__device__ __forceinline__ void place(int64_t block, int64_t row_tiles, int64_t columns, int64_t& row_tile, int64_t& column_tile) {
  const int64_t together = block / (kRowsTogether * columns) * kRowsTogether, rows = min(static_cast<int64_t>(kRowsTogether), row_tiles - together);
  const int64_t within = block - together * columns;
  row_tile = together + within % rows;
  column_tile = within / rows;
}

// out[R, N] = in[R, K] op(w[e]): forward has w stored [N][K], dgrad [K][N].
template <bool kForward>
__global__ void __launch_bounds__(kThreads, 1) rows_kernel(const bf16* __restrict__ in, const bf16* __restrict__ w, bf16* __restrict__ out,
                                                           const int32_t* __restrict__ offsets, int64_t num_experts, int64_t row_tiles, int64_t n, int64_t k) {
  int64_t tile, column, expert = 0, row = 0, end = 0;
  place(blockIdx.x, row_tiles, (n + kN - 1) / kN, tile, column);
  for (; expert < num_experts; ++expert) {
    const int64_t first = offsets[expert], tiles = (offsets[expert + 1] - first + kM - 1) / kM;
    row = first + tile * kM;
    end = offsets[expert + 1];
    if (tile < tiles) break;
    tile -= tiles;
  }
  if (expert == num_experts) return;
  column *= kN;
  tile_product(Operand<true>{in, k, end, k}, Operand<kForward>{w + expert * n * k, kForward ? k : n, n, k}, row, column, k, [&](int i, int j, float x, float y) {
    if (row + i < end && column + j < n) *reinterpret_cast<__nv_bfloat162*>(out + (row + i) * n + column + j) = __floats2bfloat162_rn(x, y);
  });
}

// dw[e][n, k] += sum over rows of the group of dy[row, n] x[row, k].
__global__ void __launch_bounds__(kThreads, 1) wgrad_kernel(const bf16* __restrict__ dy, const bf16* __restrict__ x, float* __restrict__ dw,
                                                            const int32_t* __restrict__ offsets, int64_t n, int64_t k) {
  const int64_t expert = blockIdx.y, first = offsets[expert], rows = offsets[expert + 1] - first;
  if (rows == 0) return;
  int64_t row, column;
  place(blockIdx.x, (n + kM - 1) / kM, (k + kN - 1) / kN, row, column);
  row *= kM;
  column *= kN;
  float* out = dw + expert * n * k;
  tile_product(Operand<false>{dy + first * n, n, n, rows}, Operand<false>{x + first * k, k, k, rows}, row, column, rows, [&](int i, int j, float v0, float v1) {
    if (row + i >= n || column + j >= k) return;
    float2* to = reinterpret_cast<float2*>(out + (row + i) * k + column + j);
    const float2 old = *to;
    *to = make_float2(old.x + v0, old.y + v1);
  });
}

constexpr int kShared = sizeof(Shared) + 1024;

template <typename Kernel>
void allow_shared(Kernel kernel) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared), "grouped gemm");
}

}  // namespace

void grouped_gemm_rows_hopper(const GroupedGemm& g, const Tensor& in, const Tensor& out, bool forward) {
  const int64_t experts = g.w.size(0), row_tiles = (in.size(0) + kM - 1) / kM + experts;  // each group may leave a tile partly empty
  const auto kernel = forward ? rows_kernel<true> : rows_kernel<false>;
  allow_shared(kernel);
  const dim3 grid(static_cast<unsigned>(row_tiles * ((out.size(1) + kN - 1) / kN)));
  kernel<<<grid, kThreads, kShared, stream_of(g.stream)>>>(in.data<bf16>(), g.w.data<bf16>(), out.data<bf16>(), g.offsets.i32(), experts, row_tiles, out.size(1), in.size(1));
  check_launch("grouped gemm");
}

void grouped_gemm_wgrad_hopper(const GroupedGemm& g) {
  allow_shared(wgrad_kernel);
  const int64_t n = g.w.size(1), k = g.w.size(2);
  const dim3 grid(static_cast<unsigned>((n + kM - 1) / kM * ((k + kN - 1) / kN)), static_cast<unsigned>(g.w.size(0)));
  wgrad_kernel<<<grid, kThreads, kShared, stream_of(g.stream)>>>(g.y.data<bf16>(), g.x.data<bf16>(), g.w.f32(), g.offsets.i32(), n, k);
  check_launch("grouped gemm wgrad");
}

}  // namespace hyscale
