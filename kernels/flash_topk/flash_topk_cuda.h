// Sizes of the CUDA form that need no GPU to be known.
#pragma once
#include <algorithm>
#include <bit>

#include "kernels/flash_topk/flash_topk.h"

namespace hyscale::topk {

constexpr int kColumns = 256;     // (query, head) pairs of a block: the N of its matrix products
constexpr int kKeyTile = 128;     // keys of a tile: two warpgroups of 64 rows
constexpr int kMostBlocks = 132;  // persistent blocks; one per multiprocessor, none has more

// Entries of a query's list beyond the k in its state: room for those that arrive while a selection runs.
inline int ring_capacity(int64_t k) { return std::max(1024, static_cast<int>(std::bit_ceil(static_cast<uint64_t>(2 * k)))); }
// Entries beyond k at which a selection begins, if a warp is free.
inline int select_at(int64_t k) { return std::max(256, static_cast<int>(k / 2)); }

// Entries of a list of the plain form.
inline int list_capacity(int64_t k) { return static_cast<int>(std::max<int64_t>(2048, 3 * k)); }

constexpr int kPlainBlocks = 132 * 8;  // of the plain form, a list each

// Shapes with a tensor-core form; all others take the plain one.
inline bool has_tensor_core_form(const FlashTopKUpdate& u) {
  const int64_t heads = u.q.size(1), dims = u.q.size(2);
  return (dims == 64 || dims == 128) && (heads == 32 || heads == 64 || (heads == 4 && !u.weights.defined()));
}
inline int64_t list_bytes(const FlashTopKUpdate& u, int64_t k) {
  return 8 * (has_tensor_core_form(u) ? kMostBlocks * (kColumns / u.q.size(1)) * ring_capacity(k) : kPlainBlocks * int64_t{list_capacity(k)});
}

}  // namespace hyscale::topk
