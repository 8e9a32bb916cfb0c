// What kernels over all pairs of rows share: blocks of 64 rows as swizzled tiles, and the keys that a block of queries sees.
#pragma once
#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"

namespace hyscale {

// Starts copies of up to 64 rows from `first` on, `columns` (at most 256) numbers each, into tiles of 64 columns one after another;
// zeros beyond `rows` and, inside the last tile, beyond `columns`. Columns come in pieces of 8.
template <int kThreads>
__device__ __forceinline__ void copy_rows(uint32_t tiles, const bf16* from, int64_t step, int64_t first, int64_t rows, int columns) {
  const int piece = static_cast<int>(threadIdx.x) % 32;
  if (piece * 8 >= (columns + 63) / 64 * 64) return;
  const uint32_t to = tiles + piece / 8 * hopper::kTileBytes;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < 64; row += kThreads / 32) {
    const bool valid = first + row < rows && piece * 8 < columns;
    hopper::copy16(to + hopper::tile_offset(row, piece % 8), valid ? from + (first + row) * step + piece * 8 : from, valid);
  }
}

// Keys seen by the queries of a block: by at least one of them [first, last), by all of them [all_first, all_last).
struct KeyRange {
  int first, last, all_first, all_last;
};

// For the kRows queries from `row` on; queries beyond `queries` do not count, and one that sees nothing leaves no key seen by all.
template <int kRows, int kThreads>
__device__ __forceinline__ KeyRange key_range(const int32_t* __restrict__ begin, const int32_t* __restrict__ end, int64_t row, int64_t queries) {
  __shared__ KeyRange shared;
  if (threadIdx.x == 0) shared = {INT32_MAX, 0, 0, INT32_MAX};
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRows && row + i < queries; i += kThreads) {
    const int b = begin[row + i], e = end[row + i];
    atomicMax(&shared.all_first, b);
    atomicMin(&shared.all_last, e);
    if (b >= e) continue;
    atomicMin(&shared.first, b);
    atomicMax(&shared.last, e);
  }
  __syncthreads();
  const KeyRange range = shared;
  __syncthreads();
  return range;
}

}  // namespace hyscale
