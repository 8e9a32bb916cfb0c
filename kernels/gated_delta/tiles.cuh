// Products of bf16 tiles in shared memory by wgmma, f32 sums. A tile has panels of 64 columns, each [kRows][64] with its 16-byte pieces
// permuted as in kernels/common/hopper.cuh. A block is two warpgroups; each makes 64 rows of a result and its own columns, or its own 64 rows.
#pragma once
#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"

namespace hyscale::tiles {

constexpr int kThreads = 256;

template <int kRows, int kColumns>
struct Tile {
  static constexpr int kBytes = kRows * kColumns * 2, kPanelBytes = kRows * 128;
  unsigned char* data;
  __device__ __forceinline__ unsigned char* piece(int row, int p) const { return data + p / 8 * kPanelBytes + hopper::tile_offset(row, p % 8); }
  __device__ __forceinline__ __nv_bfloat162& pair(int row, int column) const { return *reinterpret_cast<__nv_bfloat162*>(piece(row, column / 8) + column % 8 * 2); }
};

// Starts copies of the tile's rows in 16-byte pieces, zeros from `rows` on; rows of `from` are `step` apart.
template <int kRows, int kColumns>
__device__ __forceinline__ void copy_rows(Tile<kRows, kColumns> to, const bf16* from, int64_t step, int rows) {
  constexpr int kPieces = kColumns / 8;
#pragma unroll 2
  for (int n = 0; n < kRows * kPieces / kThreads; ++n) {
    const int i = n * kThreads + static_cast<int>(threadIdx.x), row = i / kPieces, p = i % kPieces;
    const bool valid = row < rows;
    hopper::copy16(hopper::shared_address(to.piece(row, p)), valid ? from + row * step + p * 8 : from, valid);
  }
}

// Rows of a tile to memory, whole pieces at a time.
template <int kRows, int kColumns>
__device__ __forceinline__ void store_rows(Tile<kRows, kColumns> from, bf16* to, int64_t step, int rows) {
  constexpr int kPieces = kColumns / 8;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kPieces; i += kThreads) {
    const int row = i / kPieces, p = i % kPieces;
    *reinterpret_cast<uint4*>(to + row * step + p * 8) = *reinterpret_cast<const uint4*>(from.piece(row, p));
  }
}

// Tiles that this block wrote, or copies that each thread has waited for, are seen by products from here on.
__device__ __forceinline__ void publish() {
  hopper::fence_to_async();
  __syncthreads();
}

// A warp's 16 rows and 8 kTiles columns of a result. Of columns 8 n and following, a lane has rows lane / 4 and lane / 4 + 8, columns
// 2 (lane % 4) and the next: numbers 4 n and 4 n + 1 of the first row, 4 n + 2 and 4 n + 3 of the second.
template <int kTiles>
using Part = float[kTiles * 4];

// How an operand lies in its tile: `along` with the contraction along its rows, `across` with a row for each number of the contraction.
enum class Lies { along, across };

// Descriptor of an operand's numbers k to k + 15 of the contraction, from row (column) `first` of the result on.
template <Lies kLies, int kRows, int kColumns>
__device__ __forceinline__ uint64_t operand(Tile<kRows, kColumns> t, int first, int k) {
  const uint32_t data = hopper::shared_address(t.data);
  constexpr int kPanel = Tile<kRows, kColumns>::kPanelBytes;
  if constexpr (kLies == Lies::along) return hopper::row_descriptor(data + static_cast<uint32_t>(k / 64 * kPanel + first * 128 + k % 64 * 2));
  else return hopper::column_descriptor(data + static_cast<uint32_t>(first / 64 * kPanel + first % 64 * 2 + k * 128));
}

// Starts d += A B over kDepth numbers, for a warpgroup; the result's rows are A's from `row` on, its columns B's from `column` on, both in one
// panel. Between hopper::wgmma_begin and products_done.
template <int kDepth, Lies kA, Lies kB, int kNumbers, int kRowsA, int kColumnsA, int kRowsB, int kColumnsB>
__device__ __forceinline__ void add_product(float (&d)[kNumbers], Tile<kRowsA, kColumnsA> a, int row, Tile<kRowsB, kColumnsB> b, int column) {
  constexpr int kAcrossA = kA == Lies::across, kAcrossB = kB == Lies::across;
  static_assert(kNumbers == 16 || kNumbers == 32, "a product has 32 or 64 columns");
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    if constexpr (kNumbers == 16) hopper::wgmma_n32<kAcrossA, kAcrossB>(d, operand<kA>(a, row, k), operand<kB>(b, column, k), 1);
    else hopper::wgmma_n64<kAcrossA, kAcrossB>(d, operand<kA>(a, row, k), operand<kB>(b, column, k), 1);
  }
}

// Waits for all products started; `d` are their sums.
template <int... kNumbers>
__device__ __forceinline__ void products_done(float (&... d)[kNumbers]) {
  hopper::wgmma_commit();
  hopper::wgmma_wait<0>();
  (hopper::pin(d), ...);
}

// visit(row, column, two neighbouring numbers of the part) for each pair a lane has.
template <int kNumbers, typename Visit>
__device__ __forceinline__ void for_each_pair(float (&d)[kNumbers], int row, int column, Visit visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kNumbers / 4; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) visit(row + lane / 4 + half * 8, column + n * 8 + lane % 4 * 2, d[n * 4 + half * 2], d[n * 4 + half * 2 + 1]);
}

}  // namespace hyscale::tiles
