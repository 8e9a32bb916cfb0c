// Packed selections: half the bytes of int32. Indices of a query ascend, so the block of 65,536 keys that an index lies in
// follows from how many indices lie in the blocks before it; only the low 16 bits are stored per index.
//
//   low        u16 [T, k]   index mod 65536, in order; beyond count: unspecified
//   block_ends u16 [T, B]   how many of the query's indices are below (b + 1) * 65536; B = packed_blocks(num_keys)
// The last column is the count. At 1M keys and k = 2048 a query takes 4,128 bytes instead of 8,196.
#pragma once
#include "core/tensor.h"
#include "kernels/flash_topk/selection.h"

namespace hyscale {

struct PackedSelection {
  Tensor low;         // u16 [T, k]
  Tensor block_ends;  // u16 [T, B]
};

// Blocks that num_keys keys span; at least 1.
int64_t packed_blocks(int64_t num_keys);

// k at most 65,535. Every index of `from` is below 65536 * B; unpack restores indices, -1 padding and counts exactly.
void pack_selection(const Selection& from, const PackedSelection& to, Stream);
void unpack_selection(const PackedSelection& from, const Selection& to, Stream);

}  // namespace hyscale
