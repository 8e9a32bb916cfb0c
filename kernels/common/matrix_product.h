// Small matrix products of the CPU references, on the calling thread.
#pragma once
#include <cblas.h>

#include <cstdint>

namespace hyscale {

// A matrix by rows: `step` elements from one row to the next.
template <typename T>
struct Rows {
  Rows(const T* rows, int64_t row_step, bool other_way = false) : data(rows), step(row_step), transposed(other_way) {}
  const T* data;
  int64_t step;
  bool transposed;
};
template <typename T>
Rows<T> transpose(const T* data, int64_t step) {
  return {data, step, true};
}

// c[m, n] = alpha a b + beta c, a [m, k], b [k, n], in f32 or f64; a transposed operand is stored the other way round.
template <typename T>
void matrix_product(int64_t m, int64_t n, int64_t k, double alpha, const Rows<T>& a, const Rows<T>& b, double beta, T* c, int64_t c_step) {
  if (m == 0 || n == 0) return;
  const auto call = [&](auto gemm) {
    gemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans, static_cast<int>(m), static_cast<int>(n),
         static_cast<int>(k), static_cast<T>(alpha), a.data, static_cast<int>(a.step), b.data, static_cast<int>(b.step), static_cast<T>(beta), c, static_cast<int>(c_step));
  };
  if constexpr (sizeof(T) == sizeof(double))
    call(cblas_dgemm);
  else
    call(cblas_sgemm);
}

}  // namespace hyscale
