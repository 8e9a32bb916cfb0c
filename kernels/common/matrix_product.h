// Small matrix products of the CPU references, on the calling thread.
#pragma once
#include <cblas.h>

#include <cstdint>

namespace hyscale {

// A matrix by rows: `step` elements from one row to the next.
struct Rows {
  const float* data;
  int64_t step;
  bool transposed = false;
};
inline Rows transpose(const float* data, int64_t step) { return {data, step, true}; }

// c[m, n] = alpha a b + beta c, a [m, k], b [k, n]; a transposed operand is stored the other way round.
inline void matrix_product(int64_t m, int64_t n, int64_t k, float alpha, const Rows& a, const Rows& b, float beta, float* c, int64_t c_step) {
  if (m == 0 || n == 0) return;
  cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans, static_cast<int>(m), static_cast<int>(n),
              static_cast<int>(k), alpha, a.data, static_cast<int>(a.step), b.data, static_cast<int>(b.step), beta, c, static_cast<int>(c_step));
}

}  // namespace hyscale
