// Helpers of the CPU references: rows of strided matrices, and sums over rows in an order that no thread count changes.
#pragma once
#include <algorithm>
#include <vector>

#include "core/tensor.h"

namespace hyscale {

inline float* row_of(const Tensor& t, int64_t row) { return t.f32() + row * t.stride(0); }

// out[c] += sum over rows of term(row, c), summed in f64, rows ascending. Columns are shared among threads in blocks.
template <typename Term>
void add_column_sums(float* out, int64_t num_rows, int64_t num_columns, Term term) {
  constexpr int64_t kBlock = 32;
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < num_columns; first += kBlock) {
    const int64_t width = std::min(kBlock, num_columns - first);
    double sums[kBlock] = {};
    for (int64_t row = 0; row < num_rows; ++row)
      for (int64_t j = 0; j < width; ++j) sums[j] += term(row, first + j);
    for (int64_t j = 0; j < width; ++j) out[first + j] += static_cast<float>(sums[j]);
  }
}

}  // namespace hyscale
