// Sizes of the CUDA form that need no GPU to be known.
#pragma once
#include <algorithm>
#include <bit>

#include "kernels/flash_topk/flash_topk.h"

namespace hyscale::topk {

constexpr int kColumns = 256;     // (query, head) pairs of a block: the N of its matrix products
constexpr int kKeyTile = 128;     // keys of a tile: two warpgroups of 64 rows
constexpr int kMostBlocks = 132;  // persistent blocks; one per multiprocessor, none has more

struct alignas(8) Candidate {
  float score;
  int32_t index;
};

// A query's list: what the last selection kept (it may keep a few more than k), and a ring, a power of two, of what came since.
// The ring holds k entries until the first selection, and what arrives while a selection runs.
constexpr int kFewRanks = 128;
inline int ring_entries(int64_t k) { return std::max(2048, static_cast<int>(std::bit_ceil(static_cast<uint64_t>(2 * k)))); }
inline int64_t list_entries(int64_t k) { return (k + kFewRanks + 1) / 2 * 2 + ring_entries(k); }  // even: both start at 16 bytes
// Entries beyond k at which a selection begins, if a warp is free.
inline int select_at(int64_t k) { return std::max(512, static_cast<int>(k / 2)); }

constexpr int kPlainBlocks = 132 * 8;  // of the plain form, a list each

// Shapes with a tensor-core form; all others take the plain one.
inline bool has_tensor_core_form(const FlashTopKUpdate& u) {
  const int64_t heads = u.q.size(1), dims = u.q.size(2);
  if (u.q.dtype() == DType::f8e4m3) return dims == 128 && (heads == 32 || heads == 64);
  return (dims == 64 || dims == 128) && (heads == 32 || heads == 64 || (heads == 4 && !u.weights.defined()));
}
inline int64_t list_bytes(const FlashTopKUpdate& u, int64_t k) {
  return (has_tensor_core_form(u) ? kMostBlocks * (kColumns / u.q.size(1)) : kPlainBlocks) * list_entries(k) * int64_t{sizeof(Candidate)};
}

}  // namespace hyscale::topk
