// One query at a time: the rows of its tokens are gathered, then the heads of a group are rows of small matrix products.
#include "kernels/block_attention/block_attention_ref.h"

#include <omp.h>

#include <cmath>
#include <limits>

#include "kernels/common/matrix_product.h"
#include "kernels/common/op.h"
#include "kernels/common/scatter.h"

namespace hyscale {
namespace {

struct Sizes {
  int64_t queries, heads, groups, dims, k, ratio, width;  // width: most tokens of a query
  template <typename Op>
  explicit Sizes(const Op& a)
      : queries(a.q.size(0)), heads(a.q.size(1)), groups(a.k.size(1)), dims(a.q.size(2)), k(a.blocks.selection.indices.size(1)), ratio(a.blocks.ratio),
        width(k * ratio + ratio - 1) {}
  int64_t per_group() const { return heads / groups; }
  int64_t key_row() const { return groups * dims; }
  int64_t query_row() const { return heads * dims; }
};

// The tokens that query t reads, ascending: those of its blocks, then its tail. Returns how many.
int64_t list_tokens(const AttendedBlocks& b, int64_t t, int32_t* tokens) {
  const int64_t k = b.selection.indices.size(1), tail = (b.positions.i32()[t] + 1) % b.ratio;
  int64_t count = 0;
  for (int64_t j = 0; j < b.selection.counts.i32()[t]; ++j) {
    const int32_t first = b.first_token.i32()[b.selection.indices.i32()[t * k + j]];
    for (int32_t i = 0; i < b.ratio; ++i) tokens[count++] = first + i;
  }
  for (int64_t i = b.first_row + t + 1 - tail; i <= b.first_row + t; ++i) tokens[count++] = static_cast<int32_t>(i);
  return count;
}

// What one thread needs for one query.
struct Scratch {
  float *keys, *values;  // [width, G D]
  float *p, *dp;         // [H, width]
  int32_t* tokens;       // [width]
};
size_t floats(int64_t n) { return aligned_bytes(static_cast<size_t>(n) * sizeof(float)); }
size_t scratch_bytes(const Sizes& n) { return 2 * floats(n.width * n.key_row()) + 2 * floats(n.heads * n.width) + floats(n.width); }
Scratch scratch_of_thread(const Tensor& workspace, const Sizes& n) {
  const int64_t each = static_cast<int64_t>(scratch_bytes(n)), at = each * omp_get_thread_num();
  Workspace w(workspace.slice(0, at, at + each));
  Scratch s{};
  for (float** x : {&s.keys, &s.values}) *x = w.take<float>(n.width * n.key_row());
  for (float** x : {&s.p, &s.dp}) *x = w.take<float>(n.heads * n.width);
  s.tokens = w.take<int32_t>(n.width);
  return s;
}

// Logits of all heads, p[h, j], and the gathered rows.
template <typename Op>
void gather_and_score(const Op& a, const Sizes& n, int64_t t, int64_t count, const Scratch& s) {
  gather_selected(s.keys, a.k.as_matrix(), s.tokens, count);
  gather_selected(s.values, a.v.as_matrix(), s.tokens, count);
  for (int64_t g = 0; g < n.groups; ++g)
    matrix_product(n.per_group(), count, n.dims, a.scale, Rows<float>{a.q.f32() + t * n.query_row() + g * n.per_group() * n.dims, n.dims},
                   transpose<float>(s.keys + g * n.dims, n.key_row()), 0, s.p + g * n.per_group() * count, count);
}

void softmax_rows(float* logits, int64_t heads, int64_t count, float* lse) {
  for (int64_t h = 0; h < heads; ++h) {
    float* l = logits + h * count;
    const float top = *std::max_element(l, l + count);
    double sum = 0;
    for (int64_t j = 0; j < count; ++j) sum += static_cast<double>(l[j] = std::exp(l[j] - top));
    for (int64_t j = 0; j < count; ++j) l[j] = static_cast<float>(l[j] / sum);
    lse[h] = static_cast<float>(top + std::log(sum));
  }
}

void forward_query(const BlockAttentionForward& a, const Sizes& n, int64_t t, const Scratch& s) {
  const int64_t count = list_tokens(a.blocks, t, s.tokens);
  float *out = a.out.f32() + t * n.query_row(), *lse = a.lse.f32() + t * n.heads;
  if (count == 0) {
    std::fill_n(out, n.query_row(), 0.0f);
    std::fill_n(lse, n.heads, -std::numeric_limits<float>::infinity());
    return;
  }
  gather_and_score(a, n, t, count, s);
  softmax_rows(s.p, n.heads, count, lse);
  for (int64_t g = 0; g < n.groups; ++g)
    matrix_product(n.per_group(), n.dims, count, 1, Rows<float>{s.p + g * n.per_group() * count, count}, Rows<float>{s.values + g * n.dims, n.key_row()}, 0,
                   out + g * n.per_group() * n.dims, n.dims);
}

// s.p holds probabilities of all heads.
void write_block_mass(const BlockAttentionBackward& a, const Sizes& n, int64_t t, int64_t count, const Scratch& s) {
  float* mass = a.block_mass.f32() + t * n.k;
  std::fill_n(mass, n.k, 0.0f);
  for (int64_t j = 0; j < a.blocks.selection.counts.i32()[t] * n.ratio; ++j) {
    double sum = 0;
    for (int64_t h = 0; h < n.heads; ++h) sum += s.p[h * count + j];
    mass[j / n.ratio] = std::max(mass[j / n.ratio], static_cast<float>(sum));
  }
}

// dk_rows, dv_rows [count, G D]: what this query adds to its tokens.
void backward_query(const BlockAttentionBackward& a, const Sizes& n, int64_t t, int64_t count, const Scratch& s, float* dk_rows, float* dv_rows) {
  const float *q = a.q.f32() + t * n.query_row(), *out = a.out.f32() + t * n.query_row(), *dout = a.dout.f32() + t * n.query_row();
  float* dq = a.dq.f32() + t * n.query_row();
  if (count == 0) {
    std::fill_n(dq, n.query_row(), 0.0f);
    if (a.block_mass.defined()) std::fill_n(a.block_mass.f32() + t * n.k, n.k, 0.0f);
    return;
  }
  gather_and_score(a, n, t, count, s);
  for (int64_t h = 0; h < n.heads; ++h)
    for (int64_t j = 0; j < count; ++j) s.p[h * count + j] = std::exp(s.p[h * count + j] - a.lse.f32()[t * n.heads + h]);
  if (a.block_mass.defined()) write_block_mass(a, n, t, count, s);
  for (int64_t g = 0; g < n.groups; ++g) {
    const int64_t head = g * n.per_group(), at = head * n.dims;
    float *p = s.p + head * count, *dp = s.dp + head * count;
    matrix_product(n.per_group(), count, n.dims, 1, Rows<float>{dout + at, n.dims}, transpose<float>(s.values + g * n.dims, n.key_row()), 0, dp, count);
    for (int64_t h = 0; h < n.per_group(); ++h) {
      double delta = 0;
      for (int64_t d = 0; d < n.dims; ++d) delta += double{dout[at + h * n.dims + d]} * out[at + h * n.dims + d];
      for (int64_t j = 0; j < count; ++j) dp[h * count + j] = a.scale * p[h * count + j] * (dp[h * count + j] - static_cast<float>(delta));
    }
    matrix_product(n.per_group(), n.dims, count, 1, Rows<float>{dp, count}, Rows<float>{s.keys + g * n.dims, n.key_row()}, 0, dq + at, n.dims);
    matrix_product(count, n.dims, n.per_group(), 1, transpose<float>(dp, count), Rows<float>{q + at, n.dims}, 0, dk_rows + g * n.dims, n.key_row());
    matrix_product(count, n.dims, n.per_group(), 1, transpose<float>(p, count), Rows<float>{dout + at, n.dims}, 0, dv_rows + g * n.dims, n.key_row());
  }
}

// Contributions of a chunk of queries to their tokens' rows, before they are summed in the order of the queries.
struct Contributions {
  float *dk, *dv;      // [chunk, width, G D]
  Selection tokens;    // i32 [chunk, width], [chunk]
};
int64_t chunk_of(const Sizes& n) { return scatter_chunk(n.queries, n.width, 2 * n.key_row()); }
size_t contribution_bytes(const Sizes& n) {
  const int64_t chunk = chunk_of(n);
  return 2 * floats(chunk * n.width * n.key_row()) + floats(chunk * n.width) + floats(chunk);
}
Contributions take_contributions(const Tensor& workspace, const Sizes& n) {
  const int64_t chunk = chunk_of(n);
  Workspace w(workspace);
  float *dk = w.take<float>(chunk * n.width * n.key_row()), *dv = w.take<float>(chunk * n.width * n.key_row());
  int32_t *indices = w.take<int32_t>(chunk * n.width), *counts = w.take<int32_t>(chunk);
  return {dk, dv, {Tensor(indices, DType::i32, Device{}, {chunk, n.width}), Tensor(counts, DType::i32, Device{}, {chunk})}};
}

}  // namespace

void block_attention_forward_ref(const BlockAttentionForward& a) {
  const Sizes n(a);
#pragma omp parallel for schedule(dynamic, 8)
  for (int64_t t = 0; t < n.queries; ++t) forward_query(a, n, t, scratch_of_thread(a.workspace, n));
}

size_t block_attention_forward_ref_workspace_bytes(const BlockAttentionForward& a) {
  return static_cast<size_t>(omp_get_max_threads()) * scratch_bytes(Sizes(a));
}

void block_attention_backward_ref(const BlockAttentionBackward& a) {
  const Sizes n(a);
  const int64_t threads_end = omp_get_max_threads() * static_cast<int64_t>(scratch_bytes(n)), chunk = chunk_of(n);
  const Contributions all = take_contributions(a.workspace.slice(0, threads_end, a.workspace.size(0)), n);
  for (int64_t first = 0; first < n.queries; first += chunk) {
    const int64_t last = std::min(n.queries, first + chunk);
#pragma omp parallel for schedule(dynamic, 8)
    for (int64_t t = first; t < last; ++t) {
      const Scratch s = scratch_of_thread(a.workspace, n);
      const int64_t count = list_tokens(a.blocks, t, s.tokens), at = (t - first) * n.width;
      std::copy_n(s.tokens, count, all.tokens.indices.i32() + at);
      all.tokens.counts.i32()[t - first] = static_cast<int32_t>(count);
      backward_query(a, n, t, count, s, all.dk + at * n.key_row(), all.dv + at * n.key_row());
    }
    scatter_add_rows(a.dk.as_matrix(), all.dk, all.tokens, 0, last - first);
    scatter_add_rows(a.dv.as_matrix(), all.dv, all.tokens, 0, last - first);
  }
}

size_t block_attention_backward_ref_workspace_bytes(const BlockAttentionBackward& a) {
  const Sizes n(a);
  return static_cast<size_t>(omp_get_max_threads()) * scratch_bytes(n) + contribution_bytes(n);
}

}  // namespace hyscale
