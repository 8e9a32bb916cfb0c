// Products of bf16 tiles in shared memory by mma.sync, f32 sums. A tile has rows of 64 or 128 numbers in 16-byte pieces, permuted by
// (piece ^ row % 8), so that ldmatrix meets no bank twice. A block is 8 warps, 4 groups of 16 rows times 2 halves of the columns.
#pragma once
#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"

namespace hyscale::tiles {

constexpr int kThreads = 256;

template <int kColumns>
struct Tile {
  static constexpr int kPitch = kColumns * 2;  // bytes
  unsigned char* data;
  __device__ __forceinline__ unsigned char* piece(int row, int p) const { return data + row * kPitch + ((p ^ (row & 7)) << 4); }
  __device__ __forceinline__ __nv_bfloat162& pair(int row, int column) const { return *reinterpret_cast<__nv_bfloat162*>(piece(row, column / 8) + column % 8 * 2); }
};

// Starts copies of 64 rows of 16-byte pieces, zeros from `rows` on; rows of `from` are `step` apart.
template <int kColumns>
__device__ __forceinline__ void copy_rows(Tile<kColumns> to, const bf16* from, int64_t step, int rows) {
  constexpr int kPieces = kColumns / 8;
  for (int i = static_cast<int>(threadIdx.x); i < 64 * kPieces; i += kThreads) {
    const int row = i / kPieces, p = i % kPieces;
    const bool valid = row < rows;
    hopper::copy16(hopper::shared_address(to.piece(row, p)), valid ? from + row * step + p * 8 : from, valid);
  }
}

// Rows of a tile to memory, whole pieces at a time.
template <int kColumns>
__device__ __forceinline__ void store_rows(Tile<kColumns> from, bf16* to, int64_t step, int rows) {
  constexpr int kPieces = kColumns / 8;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kPieces; i += kThreads) {
    const int row = i / kPieces, p = i % kPieces;
    *reinterpret_cast<uint4*>(to + row * step + p * 8) = *reinterpret_cast<const uint4*>(from.piece(row, p));
  }
}

template <bool kTransposed>
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* address) {
  const uint32_t a = hopper::shared_address(address);
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
}

__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A warp's 16 rows and 8 n columns of a result. Of columns 8 n and following, a lane has rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4)
// and the next: numbers 0, 1 of the first row and 2, 3 of the second.
template <int kTiles>
using Part = float[kTiles][4];

// How an operand lies in its tile: `along` with the contraction along its rows, `across` with a row for each number of the contraction.
enum class Lies { along, across };

// d += A B over kDepth numbers; the part's rows are A's from `row` on, its columns B's from `column` on.
template <int kDepth, Lies kA, Lies kB, int kTiles, int kColumnsA, int kColumnsB>
__device__ __forceinline__ void add_product(Part<kTiles>& d, Tile<kColumnsA> a, int row, Tile<kColumnsB> b, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32, in = lane % 8, low = lane / 8 % 2, high = lane / 16;
#pragma unroll 2
  for (int k = 0; k < kDepth; k += 16) {
    uint32_t x[4], y[4];
    if constexpr (kA == Lies::along) load_matrices<false>(x, a.piece(row + in + low * 8, k / 8 + high));
    else load_matrices<true>(x, a.piece(k + in + high * 8, row / 8 + low));
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      if constexpr (kB == Lies::along) load_matrices<false>(y, b.piece(column + n * 8 + in + high * 8, k / 8 + low));
      else load_matrices<true>(y, b.piece(k + in + low * 8, column / 8 + n + high));
      multiply(d[n], x, y[0], y[1]);
      multiply(d[n + 1], x, y[2], y[3]);
    }
  }
}

// visit(row, column, two neighbouring numbers of the part) for each pair a lane has.
template <int kTiles, typename Visit>
__device__ __forceinline__ void for_each_pair(Part<kTiles>& d, int row, int column, Visit visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) visit(row + lane / 4 + half * 8, column + n * 8 + lane % 4 * 2, d[n][half * 2], d[n][half * 2 + 1]);
}

}  // namespace hyscale::tiles
