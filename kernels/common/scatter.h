// Sums the contributions of a chunk of queries to the rows they selected, in the order of the queries whatever the threads.
#pragma once
#include <algorithm>

#include "kernels/flash_topk/selection.h"

namespace hyscale {

// rows[indices[t, j]] += contributions[t - first, j] for queries first <= t < last. rows f32 [N, D];
// contributions [last - first, k, D]. Each thread owns ranges of rows, and finds its part of an ascending index list by bisection.
inline void scatter_add_rows(const Tensor& rows, const float* contributions, const Selection& selection, int64_t first, int64_t last) {
  constexpr int64_t kRanges = 64;
  const int64_t num_rows = rows.size(0), dims = rows.size(1), k = selection.indices.size(1);
  const int64_t per_range = (num_rows + kRanges - 1) / kRanges;
#pragma omp parallel for schedule(dynamic)
  for (int64_t range = 0; range < kRanges; ++range) {
    const int64_t begin = range * per_range, end = std::min(num_rows, begin + per_range);
    for (int64_t t = first; begin < end && t < last; ++t) {
      const int32_t *indices = selection.indices.i32() + t * k, *stop = indices + selection.counts.i32()[t];
      for (const int32_t* i = std::lower_bound(indices, stop, begin); i < stop && *i < end; ++i) {
        const float* from = contributions + ((t - first) * k + (i - indices)) * dims;
        float* to = rows.f32() + *i * rows.stride(0);
#pragma omp simd
        for (int64_t d = 0; d < dims; ++d) to[d] += from[d];
      }
    }
  }
}

// Queries of one chunk: at most 64 MiB of contributions.
inline int64_t scatter_chunk(int64_t num_queries, int64_t k, int64_t dims) {
  return std::max<int64_t>(1, std::min(num_queries, (int64_t{16} << 20) / std::max<int64_t>(1, k * dims)));
}

// out[j] = rows[indices[j]]
inline void gather_selected(float* out, const Tensor& rows, const int32_t* indices, int64_t count) {
  for (int64_t j = 0; j < count; ++j) std::copy_n(rows.f32() + indices[j] * rows.stride(0), rows.size(1), out + j * rows.size(1));
}

}  // namespace hyscale
