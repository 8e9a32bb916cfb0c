// Gathers a query's selected rows, 64 at a time, into swizzled tiles (hopper.cuh), by 128 threads: eight neighbours fetch 128 bytes of a row, and a
// thread has a piece of four rows. Ids are loaded a tile ahead, so rows are asked for as soon as there is room for them.
#pragma once
#include "kernels/common/hopper.cuh"

namespace hyscale::hopper {

template <int kBlocks>
struct RowGather {
  const __nv_bfloat16* rows;  // kBlocks * 64 columns are fetched
  int64_t stride;
  const int32_t* indices;
  int count, piece, first_row;
  int32_t ids[4] = {};  // of rows first_row + 16 r; -1 beyond the count

  __device__ RowGather(const __nv_bfloat16* rows, int64_t stride, const int32_t* indices, int count, int thread)
      : rows(rows), stride(stride), indices(indices), count(count), piece(thread % 8), first_row(thread / 8) {
    load_ids(0);
  }
  __device__ __forceinline__ void load_ids(int tile) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int slot = tile * 64 + first_row + 16 * r;
      ids[r] = slot < count ? __ldg(indices + slot) : -1;
    }
  }
  // The rows of the ids loaded last, on their way to `tile`, one of 64 rows for each block of columns; zeros for -1.
  __device__ __forceinline__ void fetch(unsigned char (*tile)[kTileBytes]) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const __nv_bfloat16* from = rows + max(ids[r], 0) * stride + piece * 8;
      const uint32_t to = shared_address(tile) + tile_offset(first_row + 16 * r, piece);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) copy16(to + b * kTileBytes, from + b * 64, ids[r] >= 0);
    }
  }
};

}  // namespace hyscale::hopper
