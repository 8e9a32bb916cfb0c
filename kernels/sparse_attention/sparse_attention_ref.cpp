// One query at a time: its rows are gathered, then every head is a row of small matrix products. OpenBLAS runs on the
// calling thread here, since queries are what the threads share.
#include "kernels/sparse_attention/sparse_attention_ref.h"

#include <cblas.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "kernels/common/op.h"
#include "kernels/common/rows.h"
#include "kernels/common/scatter.h"

namespace hyscale {
namespace {

struct Sizes {
  int64_t queries, heads, dk, dv, k;
  Sizes(const Tensor& q, const Tensor& out, const Selection& s)
      : queries(q.size(0)), heads(q.size(1)), dk(q.size(2)), dv(out.size(2)), k(s.indices.size(1)) {}
};

// c[m, n] = alpha op(a) op(b) + beta c, on this thread.
void product(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b, int64_t ldb, float beta,
             float* c, int64_t ldc) {
  cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, static_cast<int>(m), static_cast<int>(n),
              static_cast<int>(k), alpha, a, static_cast<int>(lda), b, static_cast<int>(ldb), beta, c, static_cast<int>(ldc));
}

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// logits[h, j] -> probabilities; returns nothing but the log sums in lse. sink: f32 [heads], or null.
void softmax_rows(float* logits, int64_t heads, int64_t count, const float* sink, float* lse) {
  for (int64_t h = 0; h < heads; ++h) {
    float* l = logits + h * count;
    float top = sink ? sink[h] : kNothing;
    for (int64_t j = 0; j < count; ++j) top = std::max(top, l[j]);
    double sum = sink ? std::exp(double{sink[h]} - top) : 0;
    for (int64_t j = 0; j < count; ++j) sum += static_cast<double>(l[j] = std::exp(l[j] - top));
    const float inverse = static_cast<float>(1 / sum);
    for (int64_t j = 0; j < count; ++j) l[j] *= inverse;
    lse[h] = static_cast<float>(top + std::log(sum));
  }
}

// What one thread needs for one query.
struct Scratch {
  float *rows, *p, *dp;
  Scratch(Workspace& w, const Sizes& n, bool backward) {
    const int threads = omp_get_max_threads();
    rows_ = w.take<float>(threads * n.k * n.dk);
    p_ = w.take<float>(threads * n.heads * n.k);
    dp_ = backward ? w.take<float>(threads * n.heads * n.k) : nullptr;
    row_step_ = n.k * n.dk;
    p_step_ = n.heads * n.k;
  }
  Scratch of_thread() const {
    Scratch s = *this;
    const int i = omp_get_thread_num();
    s.rows = rows_ + i * row_step_;
    s.p = p_ + i * p_step_;
    s.dp = dp_ ? dp_ + i * p_step_ : nullptr;
    return s;
  }
  static size_t bytes(const Sizes& n, bool backward) {
    const size_t threads = static_cast<size_t>(omp_get_max_threads()), p = aligned_bytes(threads * static_cast<size_t>(n.heads * n.k) * 4);
    return aligned_bytes(threads * static_cast<size_t>(n.k * n.dk) * 4) + (backward ? 2 : 1) * p;
  }

 private:
  float *rows_, *p_, *dp_;
  int64_t row_step_, p_step_;
};

void backward_query(const SparseAttentionBackward& a, const Sizes& n, int64_t t, const Scratch& s, float* contribution) {
  const int64_t count = a.selection.counts.i32()[t];
  const float *q = a.q.f32() + t * n.heads * n.dk, *out = a.out.f32() + t * n.heads * n.dv, *dout = a.dout.f32() + t * n.heads * n.dv;
  float* dq = a.dq.f32() + t * n.heads * n.dk;
  if (a.head_sum.defined()) std::fill_n(a.head_sum.f32() + t * n.k, n.k, 0.0f);
  if (count == 0) return std::fill(dq, dq + n.heads * n.dk, 0.0f), void();
  gather_selected(s.rows, a.kv, a.selection.indices.i32() + t * n.k, count);
  product(false, true, n.heads, count, n.dk, a.scale, q, n.dk, s.rows, n.dk, 0, s.p, count);
  product(false, true, n.heads, count, n.dv, 1, dout, n.dv, s.rows, n.dk, 0, s.dp, count);
  for (int64_t h = 0; h < n.heads; ++h) {
    const float lse = a.lse.f32()[t * n.heads + h];
    double delta = 0;
    for (int64_t d = 0; d < n.dv; ++d) delta += double{dout[h * n.dv + d]} * out[h * n.dv + d];
    float *p = s.p + h * count, *dp = s.dp + h * count;
    for (int64_t j = 0; j < count; ++j) {
      p[j] = std::exp(p[j] - lse);
      dp[j] = a.scale * p[j] * (dp[j] - static_cast<float>(delta));
    }
    if (a.head_sum.defined())
      for (int64_t j = 0; j < count; ++j) a.head_sum.f32()[t * n.k + j] += p[j];
  }
  product(false, false, n.heads, n.dk, count, 1, s.dp, count, s.rows, n.dk, 0, dq, n.dk);
  product(true, false, count, n.dk, n.heads, 1, s.dp, count, q, n.dk, 0, contribution, n.dk);
  product(true, false, count, n.dv, n.heads, 1, s.p, count, dout, n.dv, 1, contribution, n.dk);
}

}  // namespace

void sparse_attention_forward_ref(const SparseAttentionForward& a) {
  const Sizes n(a.q, a.out, a.selection);
  Workspace workspace(a.workspace);
  const Scratch shared(workspace, n, false);
#pragma omp parallel for schedule(dynamic, 8)
  for (int64_t t = 0; t < n.queries; ++t) {
    const Scratch s = shared.of_thread();
    const int64_t count = a.selection.counts.i32()[t];
    float *out = a.out.f32() + t * n.heads * n.dv, *lse = a.lse.f32() + t * n.heads;
    if (count == 0) {
      std::fill_n(out, n.heads * n.dv, 0.0f);
      if (a.sink.defined())
        std::copy_n(a.sink.f32(), n.heads, lse);
      else
        std::fill_n(lse, n.heads, kNothing);
      continue;
    }
    gather_selected(s.rows, a.kv, a.selection.indices.i32() + t * n.k, count);
    product(false, true, n.heads, count, n.dk, a.scale, a.q.f32() + t * n.heads * n.dk, n.dk, s.rows, n.dk, 0, s.p, count);
    softmax_rows(s.p, n.heads, count, a.sink.defined() ? a.sink.f32() : nullptr, lse);
    product(false, false, n.heads, n.dv, count, 1, s.p, count, s.rows, n.dk, 0, out, n.dv);
  }
}

size_t sparse_attention_forward_ref_workspace_bytes(const SparseAttentionForward& a) {
  return Scratch::bytes(Sizes(a.q, a.out, a.selection), false);
}

void sparse_attention_backward_ref(const SparseAttentionBackward& a) {
  const Sizes n(a.q, a.out, a.selection);
  Workspace workspace(a.workspace);
  const Scratch shared(workspace, n, true);
  const int64_t chunk = scatter_chunk(n.queries, n.k, n.dk);
  float* contributions = workspace.take<float>(chunk * n.k * n.dk);
  for (int64_t first = 0; first < n.queries; first += chunk) {
    const int64_t last = std::min(n.queries, first + chunk);
#pragma omp parallel for schedule(dynamic, 8)
    for (int64_t t = first; t < last; ++t) backward_query(a, n, t, shared.of_thread(), contributions + (t - first) * n.k * n.dk);
    scatter_add_rows(a.dkv, contributions, a.selection, first, last);
  }
  if (a.dsink.defined())
    add_column_sums(a.dsink.f32(), n.queries, n.heads, [&](int64_t t, int64_t h) {
      const float *out = a.out.f32() + (t * n.heads + h) * n.dv, *dout = a.dout.f32() + (t * n.heads + h) * n.dv;
      double delta = 0;
      for (int64_t d = 0; d < n.dv; ++d) delta += double{dout[d]} * out[d];
      return -delta * std::exp(double{a.sink.f32()[h]} - a.lse.f32()[t * n.heads + h]);
    });
}

size_t sparse_attention_backward_ref_workspace_bytes(const SparseAttentionBackward& a) {
  const Sizes n(a.q, a.out, a.selection);
  return Scratch::bytes(n, true) + aligned_bytes(static_cast<size_t>(scatter_chunk(n.queries, n.k, n.dk) * n.k * n.dk) * sizeof(float));
}

}  // namespace hyscale
