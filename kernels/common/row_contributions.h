// Sums of what (query, selected row) pairs contribute to rows that many queries select, without atomics: contributions are stored in bf16 in
// the order of the pairs, then each row adds up its own in f32, by ascending query. Bit-equal across runs. A pair travels twice in bf16 where an
// f32 reduction travels once: in attention backward it takes 1.1 to 1.3 times as long as reductions (docs/benchmarks.md).
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/common/op.h"
#include "kernels/flash_topk/selection.h"

namespace hyscale {

// Queries of `queries` whose contributions are stored at a time: at most 2.5e9 bytes of k x width numbers, or 2^28 pairs, where possible a multiple of
// 8 x 132, whole waves of an H200's multiprocessors.
int64_t queries_at_a_time(int64_t queries, int64_t k, int width);

// Memory for a chunk of queries.
struct RowContributions {
  __nv_bfloat16* numbers;  // [queries, k, width]; slots beyond a query's count are not read
  uint32_t *rows, *sorted_rows, *pairs, *sorted_pairs;  // [queries k]
  char* sort;
  size_t sort_bytes;
};
size_t row_contributions_bytes(int64_t queries, int64_t k, int width);
RowContributions take_row_contributions(int64_t queries, int64_t k, int width, Workspace&);

// The pairs of the queries [first, last) of a selection among `rows` rows, sorted by row.
void sort_pairs(const Selection&, int64_t first, int64_t last, int64_t rows, const RowContributions&, cudaStream_t);
// to[row] += the sum of the contributions to it, for all pairs sorted last. `to` is f32 [rows, width] with dense rows, its stride even; width is 512 or 576,
// anything else throws.
void add_contributions(const RowContributions&, int64_t pairs, int width, const Tensor& to, cudaStream_t);

}  // namespace hyscale
