#include "kernels/dense_index_loss/dense_index_loss.h"

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "kernels/common/op.h"
#include "kernels/dense_index_loss/dense_index_loss_cuda.h"
#include "kernels/index_loss/index_gradient.h"

namespace hyscale {
namespace {

constexpr int64_t kQueries = 16;    // queries of a block; G of a block is [kQueries, E]
constexpr int64_t kKeyTile = 256;

struct Sizes {
  int64_t queries, keys, scored, heads, groups, dims, index_heads, index_dims;
  explicit Sizes(const DenseIndexLoss& l)
      : queries(l.q.size(0)), keys(l.k.size(0)), scored(l.index_keys.size(0)), heads(l.q.size(1)), groups(l.k.size(1)), dims(l.q.size(2)), index_heads(l.index_q.size(1)),
        index_dims(l.index_q.size(2)) {}
};

const float* weights_of(const DenseIndexLoss& l, int64_t t) { return l.index_weights.defined() ? l.index_weights.f32() + t * l.index_weights.size(1) : nullptr; }

// mass[s] = sum_h P[t, h, s] of the keys that query t sees.
void key_masses(const DenseIndexLoss& l, const Sizes& n, int64_t t, float* mass) {
  const int64_t end = l.end.i32()[t];
  float logits[kKeyTile];
  double sums[kKeyTile];
  for (int64_t key = l.begin.i32()[t]; key < end; key += kKeyTile) {
    const int64_t count = std::min(kKeyTile, end - key);
    std::fill_n(sums, count, 0.0);
    for (int64_t h = 0; h < n.heads; ++h) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, static_cast<int>(count), static_cast<int>(n.dims), l.scale, l.k.f32() + (key * n.groups + h / (n.heads / n.groups)) * n.dims,
                  static_cast<int>(n.groups * n.dims), l.q.f32() + (t * n.heads + h) * n.dims, 1, 0, logits, 1);
      const float head_lse = l.lse.f32()[t * n.heads + h];
      for (int64_t j = 0; j < count; ++j) sums[j] += static_cast<double>(std::exp(logits[j] - head_lse));
    }
    std::copy_n(sums, count, mass + key);
  }
}

float block_mass(const DenseIndexLoss& l, int64_t block, const float* mass) {
  if (!l.in_blocks()) return mass[block];
  const float* first = mass + l.blocks.first_token.i32()[block];
  return *std::max_element(first, first + l.blocks.ratio);
}

// gradient[e] = grad_scale * (r - p) for the blocks that query t sees; returns the divergence. mass: of the keys, scratch.
double query_gradient(const DenseIndexLoss& l, const Sizes& n, int64_t t, float* gradient, float* mass, float* dots) {
  const int64_t begin = l.scored_begin().i32()[t], end = l.scored_end().i32()[t];
  const float* q_index = l.index_q.f32() + t * n.index_heads * n.index_dims;
  float top = -INFINITY;
  for (int64_t key = begin; key < end; key += kKeyTile) {
    const int64_t count = std::min(kKeyTile, end - key);
    index_dots(q_index, l.index_keys.f32() + key * n.index_dims, n.index_heads, count, n.index_dims, dots);
    index_scores(dots, weights_of(l, t), n.index_heads, count, gradient + key);
    top = std::max(top, *std::max_element(gradient + key, gradient + key + count));
  }
  key_masses(l, n, t, mass);
  double sum = 0, total = 0, loss = 0;
  for (int64_t e = begin; e < end; ++e) sum += std::exp(double{gradient[e]} - top), total += block_mass(l, e, mass);
  const double lse = top + std::log(sum);
  for (int64_t e = begin; e < end; ++e) {
    const double p = block_mass(l, e, mass) / total, log_r = gradient[e] - lse;
    if (p > 0) loss += p * (std::log(p) - log_r);
    gradient[e] = static_cast<float>(l.grad_scale * (std::exp(log_r) - p));
  }
  return loss;
}

// dq and dw of query t from its score gradients.
void query_backward(const DenseIndexLoss& l, const Sizes& n, int64_t t, const float* gradient, float* dots) {
  const int64_t begin = l.scored_begin().i32()[t], end = l.scored_end().i32()[t], width = n.index_heads * n.index_dims;
  const float* q = l.index_q.f32() + t * width;
  float *dq = l.dindex_q.f32() + t * width, *dw = l.dindex_weights.defined() ? l.dindex_weights.f32() + t * n.index_heads : nullptr;
  std::fill_n(dq, width, 0.0f);
  if (dw) std::fill_n(dw, n.index_heads, 0.0f);
  for (int64_t key = begin; key < end; key += kKeyTile) {
    const int64_t count = std::min(kKeyTile, end - key);
    const float* rows = l.index_keys.f32() + key * n.index_dims;
    index_dots(q, rows, n.index_heads, count, n.index_dims, dots);
    index_dots_gradient(dots, gradient + key, weights_of(l, t), n.index_heads, count, dw);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(n.index_heads), static_cast<int>(n.index_dims), static_cast<int>(count), 1,
                dots, static_cast<int>(count), rows, static_cast<int>(n.index_dims), 1, dq, static_cast<int>(n.index_dims));
  }
}

// Scored keys [key, key + kKeyTile) from a block of queries, in their order; the tile belongs to one thread.
void keys_backward(const DenseIndexLoss& l, const Sizes& n, int64_t first, int64_t last, int64_t key, const float* gradients, float* dots) {
  for (int64_t t = first; t < last; ++t) {
    const int64_t begin = std::max<int64_t>(key, l.scored_begin().i32()[t]), end = std::min<int64_t>({key + kKeyTile, l.scored_end().i32()[t], n.scored});
    if (begin >= end) continue;
    const int64_t count = end - begin;
    const float* q = l.index_q.f32() + t * n.index_heads * n.index_dims;
    index_dots(q, l.index_keys.f32() + begin * n.index_dims, n.index_heads, count, n.index_dims, dots);
    index_dots_gradient(dots, gradients + (t - first) * n.scored + begin, weights_of(l, t), n.index_heads, count, nullptr);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, static_cast<int>(count), static_cast<int>(n.index_dims), static_cast<int>(n.index_heads), 1,
                dots, static_cast<int>(count), q, static_cast<int>(n.index_dims), 1, l.dindex_keys.f32() + begin * n.index_dims,
                static_cast<int>(n.index_dims));
  }
}

void dense_index_loss_ref(const DenseIndexLoss& l) {
  const Sizes n(l);
  Workspace workspace(l.workspace);
  float* gradients = workspace.take<float>(kQueries * n.scored);
  float* masses = workspace.take<float>(omp_get_max_threads() * n.keys);
  float* all_dots = workspace.take<float>(omp_get_max_threads() * n.index_heads * kKeyTile);
  double losses[kQueries];
  for (int64_t first = 0; first < n.queries; first += kQueries) {
    const int64_t last = std::min(n.queries, first + kQueries);
#pragma omp parallel for schedule(dynamic)
    for (int64_t t = first; t < last; ++t) {
      float* dots = all_dots + omp_get_thread_num() * n.index_heads * kKeyTile;
      losses[t - first] = query_gradient(l, n, t, gradients + (t - first) * n.scored, masses + omp_get_thread_num() * n.keys, dots);
      query_backward(l, n, t, gradients + (t - first) * n.scored, dots);
    }
    const int64_t tiles = (n.scored + kKeyTile - 1) / kKeyTile;
#pragma omp parallel for schedule(dynamic)
    for (int64_t tile = 0; tile < tiles; ++tile)
      keys_backward(l, n, first, last, tile * kKeyTile, gradients, all_dots + omp_get_thread_num() * n.index_heads * kKeyTile);
    for (int64_t t = first; t < last; ++t) l.loss_sum.data<double>()[0] += losses[t - first];
  }
}

}  // namespace

void dense_index_loss(const DenseIndexLoss& l) {
  check_shape(l.k, "k", {-1, -1, l.q.size(2)});
  HYSCALE_CHECK(l.k.size(1) > 0 && l.q.size(1) % l.k.size(1) == 0, l.q.size(1), " heads of q on ", l.k.size(1), " of k");
  check_tensor(l.lse, "lse", DType::f32, {l.q.size(0), l.q.size(1)});
  check_shape(l.index_q, "index_q", {l.q.size(0), -1, -1});
  for (const Tensor* t : {&l.begin, &l.end, &l.scored_begin(), &l.scored_end()}) check_tensor(*t, "visible keys", DType::i32, {l.q.size(0)});
  HYSCALE_CHECK(l.index_weights.defined() == l.dindex_weights.defined(), "index_weights and dindex_weights come together");
  if (l.index_weights.defined()) check_tensor(l.index_weights, "index_weights", DType::f32, {l.q.size(0), l.index_q.size(1)});
  if (l.index_weights.defined()) check_tensor(l.dindex_weights, "dindex_weights", DType::f32, l.index_weights.shape());
  if (l.in_blocks()) check_tensor(l.blocks.first_token, "first_token", DType::i32, {-1});
  check_shape(l.index_keys, "index_keys", {l.in_blocks() ? l.blocks.first_token.size(0) : l.k.size(0), l.index_q.size(2)});
  check_shape(l.dindex_q, "dindex_q", l.index_q.shape());
  check_tensor(l.dindex_keys, "dindex_keys", DType::f32, l.index_keys.shape());
  check_tensor(l.loss_sum, "loss_sum", DType::f64, {1});
  for (const Tensor* t : {&l.q, &l.k, &l.index_q, &l.index_keys, &l.dindex_q}) HYSCALE_CHECK(t->is_contiguous(), to_string(*t), " is strided");
  HYSCALE_DISPATCH("dense_index_loss", l.q.device(), dense_index_loss_ref(l), dense_index_loss_cuda(l));
}

size_t dense_index_loss_workspace_bytes(const DenseIndexLoss& l) {
  if (l.q.dtype() != DType::f32) return dense_index_loss_cuda_workspace_bytes(l);
  const Sizes n(l);
  return aligned_bytes(static_cast<size_t>(kQueries * n.scored) * sizeof(float)) + aligned_bytes(static_cast<size_t>(omp_get_max_threads() * n.keys) * sizeof(float)) +
         aligned_bytes(static_cast<size_t>(omp_get_max_threads() * n.index_heads * kKeyTile) * sizeof(float));
}

}  // namespace hyscale
