// Sizes of the CUDA form that need no GPU to be known.
#pragma once
#include <algorithm>

#include "kernels/flash_topk/flash_topk.h"

namespace hyscale::topk {

constexpr int kColumns = 256;     // (query, head) pairs of a block: the N of its matrix products
constexpr int kKeyTile = 128;     // keys of a tile: two warpgroups of 64 rows
constexpr int kMostBlocks = 132;  // persistent blocks; one per multiprocessor, none has more

// Candidates that a query's list holds between selections: room for 8 tiles after the k that stay.
inline int list_capacity(int64_t k) { return static_cast<int>(std::max<int64_t>(2048, (3 * k + kKeyTile - 1) / kKeyTile * kKeyTile)); }

constexpr int kPlainBlocks = 132 * 8;  // of the plain form, a list each

// Shapes with a tensor-core form; all others take the plain one.
inline bool has_tensor_core_form(const FlashTopKUpdate& u) {
  const int64_t heads = u.q.size(1), dims = u.q.size(2);
  return (dims == 64 || dims == 128) && (heads == 32 || heads == 64 || (heads == 4 && !u.weights.defined()));
}
inline int64_t num_lists(const FlashTopKUpdate& u) { return has_tensor_core_form(u) ? kMostBlocks * (kColumns / u.q.size(1)) : kPlainBlocks; }

}  // namespace hyscale::topk
