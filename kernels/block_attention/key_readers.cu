// Blocks of a query ascend, so those of one tile lie side by side; the first of them stands for all. Sorting (tile, query) by tile keeps the
// queries in order.
#include "kernels/block_attention/key_readers.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/pair_sort.cuh"

namespace hyscale {
namespace {

constexpr int kThreads = 256;

__global__ void list_pairs(const int32_t* indices, const int32_t* counts, int64_t first, int64_t pairs, int k, uint32_t tiles, uint32_t* tile_of, uint32_t* reader_of) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= pairs) return;
  const int64_t query = i / k;
  const int slot = static_cast<int>(i % k), count = counts[first + query];
  const int32_t* ids = indices + (first + query) * k;
  const int32_t tile = slot < count ? ids[slot] / kTileBlocks : -1;
  const bool leads = slot < count && (slot == 0 || ids[slot - 1] / kTileBlocks != tile);
  uint32_t blocks = 0;
  for (int j = slot; leads && j < count && ids[j] / kTileBlocks == tile; ++j) blocks |= 1u << ids[j] % kTileBlocks;
  tile_of[i] = leads ? static_cast<uint32_t>(tile) : tiles;
  reader_of[i] = static_cast<uint32_t>(query) << kTileBlocks | blocks;
}

// Of every tile, how many pairs come before its own.
__global__ void find_starts(const uint32_t* sorted_tiles, int64_t pairs, int tiles, int32_t* starts) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i > pairs) return;
  const int before = i == 0 ? -1 : static_cast<int>(sorted_tiles[i - 1]), here = i == pairs ? tiles : static_cast<int>(sorted_tiles[i]);
  for (int tile = before + 1; tile <= here; ++tile) starts[tile] = static_cast<int32_t>(i);
}

// A united block costs 16 KiB of reductions per pair of groups, a reader of a tile 24 KiB of queries that are read again.
__global__ void choose(const UnitedCounts* counts, int groups, const int32_t* readers, int* apart) {
  long long united = 0;
  for (int i = static_cast<int>(threadIdx.x); i < groups; i += kThreads) united += counts[i].selected;
  united = block_sum<kThreads>(united);
  if (threadIdx.x == 0) *apart = united * 9 > static_cast<long long>(*readers) * 5;
}

}  // namespace

KeyReaders no_key_readers(int tiles, const KeyReadersSpace& s, cudaStream_t stream) {
  check_cuda(cudaMemsetAsync(s.apart, 0, sizeof(int), stream), "key readers");
  return {s.readers, s.starts, s.deltas, s.apart, tiles};
}

KeyReaders list_key_readers(const AttendedTokens& tokens, int64_t first, int64_t last, int tiles, const UnitedBlocks& u, const KeyReadersSpace& s, cudaStream_t stream) {
  const int64_t pairs = (last - first) * tokens.k;
  list_pairs<<<grid_for(pairs, kThreads), kThreads, 0, stream>>>(tokens.indices, tokens.counts, first, pairs, tokens.k, static_cast<uint32_t>(tiles), s.tiles, s.unsorted);
  sort_by_key(s.tiles, s.sorted_tiles, s.unsorted, s.readers, pairs, tiles, s.sort, s.sort_bytes, stream);
  find_starts<<<grid_for(pairs + 1, kThreads), kThreads, 0, stream>>>(s.sorted_tiles, pairs, tiles, s.starts);
  choose<<<1, kThreads, 0, stream>>>(u.counts, static_cast<int>((last - first + u.united - 1) / u.united), s.starts + tiles, s.apart);
  check_launch("key readers");
  return {s.readers, s.starts, s.deltas, s.apart, tiles};
}

}  // namespace hyscale
