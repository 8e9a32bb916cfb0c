#include "kernels/gemm/gemm.h"

#include "core/memory.h"

#include <cblas.h>
#include <omp.h>

#include <algorithm>

#include "kernels/common/op.h"

namespace hyscale {

void gemm_cuda(const Gemm&);

namespace {

void check(const Gemm& g) {
  const int r = g.c.rank();
  HYSCALE_CHECK((r == 2 || r == 3) && g.a.rank() == r && g.b.rank() == r, "a ", to_string(g.a), ", b ", to_string(g.b), ", c ", to_string(g.c));
  const int64_t m = g.a.size(g.transpose_a ? -1 : r - 2), k = g.a.size(g.transpose_a ? r - 2 : -1);
  const int64_t kb = g.b.size(g.transpose_b ? -1 : r - 2), n = g.b.size(g.transpose_b ? r - 2 : -1);
  HYSCALE_CHECK(k == kb && g.c.size(r - 2) == m && g.c.size(-1) == n, "op(a) is ", m, " x ", k, ", op(b) is ", kb, " x ", n, ", c is ",
                to_string(g.c));
  for (const Tensor* t : {&g.a, &g.b, &g.c}) {
    HYSCALE_CHECK(t->size(-1) <= 1 || t->stride(r - 1) == 1, "the last dimension of ", to_string(*t), " is not dense");
    HYSCALE_CHECK(t->device() == g.c.device(), "operands on ", to_string(t->device()), " and ", to_string(g.c.device()));
    if (r == 3) HYSCALE_CHECK(t->size(0) == g.c.size(0), "batches of ", t->size(0), " and ", g.c.size(0));
  }
}

void scale_rows(const Tensor& c, float beta) {
  const Tensor batches = c.rank() == 3 ? c : Tensor(c.raw(), c.dtype(), c.device(), {1, c.size(0), c.size(1)}, {0, c.stride(0), c.stride(1)});
  for (int64_t b = 0; b < batches.size(0); ++b)
    for (int64_t i = 0; i < batches.size(1); ++i) {
      float* row = batches.f32() + b * batches.stride(0) + i * batches.stride(1);
      for (int64_t j = 0; j < batches.size(2); ++j) row[j] = beta == 0 ? 0 : beta * row[j];
    }
}

// The step from row to row; a matrix of one row may carry any.
int leading(const Tensor& t) {
  const int r = t.rank();
  return static_cast<int>(std::max({t.stride(r - 2), t.size(-1), int64_t{1}}));
}

void one_product(const Gemm& g, int64_t batch) {
  const int r = g.c.rank();
  const auto at = [&](const Tensor& t) { return t.f32() + (r == 3 ? batch * t.stride(0) : 0); };
  const int m = static_cast<int>(g.c.size(r - 2)), n = static_cast<int>(g.c.size(-1));
  const int k = static_cast<int>(g.a.size(g.transpose_a ? r - 2 : -1));
  cblas_sgemm(CblasRowMajor, g.transpose_a ? CblasTrans : CblasNoTrans, g.transpose_b ? CblasTrans : CblasNoTrans, m, n, k, g.alpha,
              at(g.a), leading(g.a), at(g.b), leading(g.b), g.beta, at(g.c), leading(g.c));
}

void gemm_ref(const Gemm& g) {
  const int64_t batches = g.c.rank() == 3 ? g.c.size(0) : 1;
  // OpenBLAS called inside a parallel region uses one thread, so many small products share the threads whole.
  if (batches >= omp_get_max_threads()) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t b = 0; b < batches; ++b) one_product(g, b);
  } else {
    for (int64_t b = 0; b < batches; ++b) one_product(g, b);
  }
}

}  // namespace

void gemm(const Gemm& g) {
  check(g);
  if (g.c.elements() == 0) return;
  if (g.a.elements() == 0 && g.c.device().is_cpu()) return scale_rows(g.c, g.beta);
  HYSCALE_DISPATCH("gemm", g.c.device(), gemm_ref(g), gemm_cuda(g));
}

}  // namespace hyscale
