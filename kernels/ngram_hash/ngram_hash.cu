#include "kernels/common/cuda.cuh"
#include "kernels/ngram_hash/ngram_hash.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256, kMostOrder = 8, kMostHeads = 64;

// The table's numbers as a kernel's argument.
struct Table {
  int64_t multipliers[kMostOrder], sizes[kMostHeads], offsets[kMostHeads];
  int order, heads;
};

__global__ void ngram_hash_kernel(const __grid_constant__ Table table, const int32_t* __restrict__ tokens, const int32_t* __restrict__ positions, int32_t eos,
                                  int32_t* __restrict__ rows, int64_t count) {
  const int per_order = table.heads / (table.order - 1);
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; t < count; t += static_cast<int64_t>(gridDim.x) * kThreads) {
    int64_t hash = 0;
    bool inside = true;  // no end of a segment between the place and the token
    for (int j = 0; j < table.order; ++j) {
      inside = inside && j <= positions[t] && (j == 0 || tokens[t - j] != eos);
      hash ^= (inside ? tokens[t - j] : eos) * table.multipliers[j];
      for (int h = (j - 1) * per_order; j > 0 && h < j * per_order; ++h) rows[t * table.heads + h] = static_cast<int32_t>(hash % table.sizes[h] + table.offsets[h]);
    }
  }
}

}  // namespace

void ngram_hash_cuda(const NgramHash& n) {
  Table table{};
  table.order = static_cast<int>(n.table.multipliers.size()), table.heads = static_cast<int>(n.table.heads());
  HYSCALE_CHECK(table.order >= 2 && table.order <= kMostOrder && table.heads <= kMostHeads, "n-grams of ", table.order, " tokens, ", table.heads, " heads; on CUDA at most ",
                kMostOrder, " and ", kMostHeads);
  if (n.tokens.size(0) == 0) return;
  std::copy(n.table.multipliers.begin(), n.table.multipliers.end(), table.multipliers);
  std::copy(n.table.sizes.begin(), n.table.sizes.end(), table.sizes);
  std::copy(n.table.offsets.begin(), n.table.offsets.end(), table.offsets);
  ngram_hash_kernel<<<grid_for(n.tokens.size(0), kThreads), kThreads, 0, stream_of(n.stream)>>>(table, n.tokens.i32(), n.positions.i32(), n.eos, n.rows.i32(), n.tokens.size(0));
  check_launch("ngram_hash");
}

}  // namespace hyscale
