// The queries that read each tile of 16 neighbouring blocks, ascending: a selection seen from its keys. With it a thread block can own a
// tile's sums of dk and dv.
#pragma once
#include <cuda_runtime.h>

#include "kernels/block_attention/united_blocks.h"

namespace hyscale {

inline constexpr int kTileBlocks = 16;

struct KeyReaders {
  const uint32_t* readers;  // (number of the query << 16 | its blocks as bits), by tile, then by query
  const int32_t* starts;    // [tiles + 1]: of a tile's readers
  float* deltas;            // [queries, H]: dout . out
  const int* apart;         // whether dk and dv are summed tile by tile; else with dq, by reductions
  int tiles;
};

// Memory for the readers of up to united_groups() united_queries() queries.
struct KeyReadersSpace {
  uint32_t *tiles, *sorted_tiles, *unsorted, *readers;  // [queries k]
  int32_t* starts;
  float* deltas;
  int* apart;
  char* sort;
  size_t sort_bytes;
};

template <typename Op>
int64_t key_tiles(const Op& a) {
  return (a.blocks.first_token.size(0) + kTileBlocks - 1) / kTileBlocks;
}

template <typename Op>
size_t key_readers_bytes(const Op& a) {
  const int64_t queries = united_groups(a) * united_queries(a), pairs = queries * a.blocks.selection.indices.size(1);
  return 4 * aligned_bytes(static_cast<size_t>(pairs) * 4) + aligned_bytes(static_cast<size_t>(key_tiles(a) + 1) * 4) +
         aligned_bytes(static_cast<size_t>(queries * a.q.size(1)) * 4) + aligned_bytes(sizeof(int)) + pair_sort_bytes(pairs);
}
template <typename Op>
KeyReadersSpace take_key_readers(const Op& a, Workspace& w) {
  const int64_t queries = united_groups(a) * united_queries(a), pairs = queries * a.blocks.selection.indices.size(1);
  KeyReadersSpace s;
  for (uint32_t** list : {&s.tiles, &s.sorted_tiles, &s.unsorted, &s.readers}) *list = w.take<uint32_t>(pairs);
  s.starts = w.take<int32_t>(key_tiles(a) + 1);
  s.deltas = w.take<float>(queries * a.q.size(1));
  s.apart = w.take<int>(1);
  s.sort_bytes = pair_sort_bytes(pairs);
  s.sort = w.take<char>(static_cast<int64_t>(s.sort_bytes));
  return s;
}

// Readers among the queries [first, last), at most 2^14 of them, whose blocks have been united in `u`.
KeyReaders list_key_readers(const AttendedTokens&, int64_t first, int64_t last, int tiles, const UnitedBlocks& u, const KeyReadersSpace&, cudaStream_t);
// Where sums by reductions are known to be the faster ones: none are listed, and `apart` says so.
KeyReaders no_key_readers(int tiles, const KeyReadersSpace&, cudaStream_t);

}  // namespace hyscale
