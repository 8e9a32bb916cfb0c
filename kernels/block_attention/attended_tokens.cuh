// The tokens that a query reads, by number: those of its blocks, then its tail.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/block_attention/block_attention.h"

namespace hyscale {

struct AttendedTokens {
  const int32_t *first_token, *positions, *indices, *counts;
  int64_t first_row;
  int ratio, k;
  explicit AttendedTokens(const AttendedBlocks& b)
      : first_token(b.first_token.i32()), positions(b.positions.i32()), indices(b.selection.indices.i32()), counts(b.selection.counts.i32()), first_row(b.first_row),
        ratio(static_cast<int>(b.ratio)), k(static_cast<int>(b.selection.indices.size(1))) {}
  __host__ __device__ int most() const { return k * ratio + ratio - 1; }  // tokens of a query

  __device__ int in_blocks(int64_t t) const { return counts[t] * ratio; }
  __device__ int count(int64_t t) const { return in_blocks(t) + (positions[t] + 1) % ratio; }
  // Row of k and v of token `slot` < count.
  __device__ int64_t row(int64_t t, int slot, int count) const {
    return slot < counts[t] * ratio ? first_token[indices[t * k + slot / ratio]] + slot % ratio : first_row + t + 1 - (count - slot);
  }
};

}  // namespace hyscale
