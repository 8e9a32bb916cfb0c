#include "kernels/index_loss/index_loss_ref.h"

#include <omp.h>

#include <cmath>

#include "kernels/common/op.h"
#include "kernels/common/scatter.h"
#include "kernels/index_loss/index_gradient.h"

namespace hyscale {
namespace {

struct Sizes {
  int64_t queries, heads, dims, k;
  explicit Sizes(const IndexLoss& l) : queries(l.q.size(0)), heads(l.q.size(1)), dims(l.q.size(2)), k(l.selection.indices.size(1)) {}
};

// KL(p || r) of one query; scores become the gradient grad_scale * (r - p).
double divergence(float* scores, const float* head_sum, int64_t count, float grad_scale) {
  double teacher_sum = 0, student_sum = 0;
  float top = scores[0];
  for (int64_t j = 0; j < count; ++j) teacher_sum += head_sum[j], top = std::max(top, scores[j]);
  for (int64_t j = 0; j < count; ++j) student_sum += std::exp(double{scores[j]} - top);
  const double lse = top + std::log(student_sum);
  double loss = 0;
  for (int64_t j = 0; j < count; ++j) {
    const double p = head_sum[j] / teacher_sum, log_r = scores[j] - lse;
    if (p > 0) loss += p * (std::log(p) - log_r);
    scores[j] = static_cast<float>(grad_scale * (std::exp(log_r) - p));
  }
  return loss;
}

double one_query(const IndexLoss& l, const Sizes& n, int64_t t, float* rows, float* dots, float* scores, float* contribution) {
  const int64_t count = l.selection.counts.i32()[t];
  const float *q = l.q.f32() + t * n.heads * n.dims, *w = l.weights.defined() ? l.weights.f32() + t * n.heads : nullptr;
  float *dq = l.dq.f32() + t * n.heads * n.dims, *dw = l.dweights.defined() ? l.dweights.f32() + t * n.heads : nullptr;
  if (dw) std::fill_n(dw, n.heads, 0.0f);
  if (count == 0) return std::fill_n(dq, n.heads * n.dims, 0.0f), 0;
  gather_selected(rows, l.keys, l.selection.indices.i32() + t * n.k, count);
  index_dots(q, rows, n.heads, count, n.dims, dots);
  index_scores(dots, w, n.heads, count, scores);
  const double loss = divergence(scores, l.head_sum.f32() + t * n.k, count, l.grad_scale);
  index_dots_gradient(dots, scores, w, n.heads, count, dw);
  const int heads = static_cast<int>(n.heads), c = static_cast<int>(count), dims = static_cast<int>(n.dims);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, heads, dims, c, 1, dots, c, rows, dims, 0, dq, dims);
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, c, dims, heads, 1, dots, c, q, dims, 0, contribution, dims);
  return loss;
}

}  // namespace

void index_loss_ref(const IndexLoss& l) {
  const Sizes n(l);
  Workspace workspace(l.workspace);
  const int threads = omp_get_max_threads();
  float* rows = workspace.take<float>(threads * n.k * n.dims);
  float* dots = workspace.take<float>(threads * n.heads * n.k);
  float* scores = workspace.take<float>(threads * n.k);
  const int64_t chunk = scatter_chunk(n.queries, n.k, n.dims);
  float* contributions = workspace.take<float>(chunk * n.k * n.dims);
  double* losses = workspace.take<double>(chunk);
  for (int64_t first = 0; first < n.queries; first += chunk) {
    const int64_t last = std::min(n.queries, first + chunk);
#pragma omp parallel for schedule(dynamic, 8)
    for (int64_t t = first; t < last; ++t) {
      const int i = omp_get_thread_num();
      losses[t - first] = one_query(l, n, t, rows + i * n.k * n.dims, dots + i * n.heads * n.k, scores + i * n.k,
                                    contributions + (t - first) * n.k * n.dims);
    }
    scatter_add_rows(l.dkeys, contributions, l.selection, first, last);
    for (int64_t t = first; t < last; ++t) l.loss_sum.data<double>()[0] += losses[t - first];
  }
}

size_t index_loss_ref_workspace_bytes(const IndexLoss& l) {
  const Sizes n(l);
  const size_t threads = static_cast<size_t>(omp_get_max_threads()), chunk = static_cast<size_t>(scatter_chunk(n.queries, n.k, n.dims));
  const auto floats = [](size_t count, int64_t each) { return aligned_bytes(count * static_cast<size_t>(each) * sizeof(float)); };
  return floats(threads, n.k * n.dims) + floats(threads, n.heads * n.k) + floats(threads, n.k) + floats(chunk, n.k * n.dims) +
         aligned_bytes(chunk * sizeof(double));
}

}  // namespace hyscale
