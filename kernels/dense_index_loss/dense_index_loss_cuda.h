// Pieces of dense_index_loss on CUDA. Blocks of queries are worked on one after another against all keys; of one block of queries
// there are tables: `masses` [block, N] of the keys, `teacher` and `scores` [block, E] of what is scored.
#pragma once
#include <algorithm>

#include "kernels/common/op.h"
#include "kernels/dense_index_loss/dense_index_loss.h"

namespace hyscale {

void dense_index_loss_cuda(const DenseIndexLoss&);

namespace dense_loss {

// Queries of a block: a multiple of 128, so that two tables take at most 1 GiB together where N allows it.
inline int64_t query_block(int64_t queries, int64_t keys) {
  const int64_t most = std::clamp<int64_t>((int64_t{1} << 27) / std::max<int64_t>(keys, 1) / 128 * 128, 128, 512);
  return std::min(most, (queries + 127) / 128 * 128);
}

// Queries [first, last) of the loss; the tables' row 0 is query `first`.
struct QueryBlock {
  const DenseIndexLoss* loss;
  int64_t first, last;
  float *masses, *teacher, *scores;  // without blocks the teacher is the masses
};

// At the visible pairs; what lies at other pairs is not defined.
//   masses[t, s] = sum_h exp(scale q . k - lse),  scores[t, e] = sum_j w relu(index_q . index_k)
void head_sums(const QueryBlock&);
void head_sums_plain(const QueryBlock&);

// With the score gradients in `teacher`: dindex_q and dindex_weights of the queries are written, dindex_keys added to. Each output
// has one owner that sums in a fixed order.
void gradients(const QueryBlock&);
void gradients_plain(const QueryBlock&);

inline float* optional_f32(const Tensor& t) { return t.defined() ? t.f32() : nullptr; }

inline bool has_tensor_core_form(const DenseIndexLoss& l) {
  return l.q.size(2) % 8 == 0 && l.q.size(2) > 0 && l.index_q.size(2) % 8 == 0 && l.index_q.size(2) > 0 && l.index_q.size(2) <= 256;
}

}  // namespace dense_loss

inline size_t dense_index_loss_cuda_workspace_bytes(const DenseIndexLoss& l) {
  const int64_t queries = l.q.size(0), block = dense_loss::query_block(queries, l.k.size(0));
  const auto table = [&](int64_t columns) { return aligned_bytes(static_cast<size_t>(block * columns) * sizeof(float)); };
  return aligned_bytes(static_cast<size_t>(queries) * sizeof(double)) + table(l.k.size(0)) + (l.in_blocks() ? 2 : 1) * table(l.index_keys.size(0));
}

}  // namespace hyscale
