// The blocks that a few neighbouring queries read between them: each once, ascending, with who reads it. Their tails follow as blocks of
// their own, of which a query reads the tokens up to itself.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/block_attention/attended_tokens.cuh"
#include "kernels/common/op.h"

namespace hyscale {

inline constexpr int kMostUnited = 8;  // queries

struct UnitedBlock {
  int32_t row;       // of k and v: its first token
  uint32_t readers;  // bit 4 q + i: query q reads token i
};
struct UnitedCounts {
  int32_t selected, all;  // without and with tails
};

// Lists of groups of `united` queries, for blocks of 4 tokens.
struct UnitedBlocks {
  UnitedBlock* blocks;   // [groups of queries, most()]
  UnitedCounts* counts;  // [groups of queries]
  uint16_t* slots;       // [groups of queries, most(), kMostUnited]: where a block stands in each reader's selection; or null
  int united, k;
  __host__ __device__ int most() const { return united * (k + 1); }
};

// How many queries' heads of a group fit the 64 rows of a product; groups of queries whose lists are held at a time.
template <typename Op>
int united_queries(const Op& a) {
  return static_cast<int>(std::min<int64_t>(kMostUnited, 64 / (a.q.size(1) / a.k.size(1))));
}
inline constexpr int64_t kUnitedAtATime = 2048;

template <typename Op>
int64_t united_groups(const Op& a) {
  return std::min(kUnitedAtATime, (a.q.size(0) + united_queries(a) - 1) / united_queries(a));
}
template <typename Op>
size_t united_blocks_bytes(const Op& a, bool with_slots) {
  const size_t groups = static_cast<size_t>(united_groups(a)), blocks = groups * static_cast<size_t>(united_queries(a) * (a.blocks.selection.indices.size(1) + 1));
  return aligned_bytes(blocks * sizeof(UnitedBlock)) + aligned_bytes(groups * sizeof(UnitedCounts)) + (with_slots ? aligned_bytes(blocks * kMostUnited * 2) : 0);
}
// Sums of P over each group's heads for the tokens of the selected blocks, from which block_mass is made.
template <typename Op>
size_t head_sums_bytes(const Op& a) {
  const int64_t queries = united_groups(a) * united_queries(a);
  return a.block_mass.defined() ? aligned_bytes(static_cast<size_t>(queries * a.k.size(1) * a.blocks.selection.indices.size(1)) * 16) : 0;
}
template <typename Op>
UnitedBlocks take_united_blocks(const Op& a, Workspace& w, bool with_slots) {
  UnitedBlocks u{nullptr, nullptr, nullptr, united_queries(a), static_cast<int>(a.blocks.selection.indices.size(1))};
  const int64_t groups = united_groups(a), blocks = groups * u.most();
  u.blocks = w.take<UnitedBlock>(blocks);
  u.counts = w.take<UnitedCounts>(groups);
  if (with_slots) u.slots = w.take<uint16_t>(blocks * kMostUnited);
  return u;
}

// Fills the lists of the queries [first, last); `first` begins the first group. Block numbers are below 2^29.
void unite_blocks(const AttendedTokens&, int64_t first, int64_t last, const UnitedBlocks&, cudaStream_t);

}  // namespace hyscale
