// Index loss of the warm-up stage: as index_loss.h, but teacher and student range over every visible key.
//   p[t, s] = sum_h exp(scale * q[t, h] . k[s, h] - lse[t, h]) / H,    r = softmax over visible s of score(t, s)
//   loss_sum += sum_t KL(p || r),   dscore = grad_scale * (r - p)
// Blocks of queries against all keys: memory O(T), no table. A query that sees nothing adds 0.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct DenseIndexLoss {
  Tensor q, k;               // [T, H, D], [N, H, D]: main attention
  Tensor lse;                // f32 [T, H] from dense_attention
  float scale = 1;           // of main attention
  Tensor index_q;            // [T, J, Di]
  Tensor index_weights;      // f32 [T, J]
  Tensor index_keys;         // [N, Di]
  Tensor begin, end;         // i32 [T]
  float grad_scale = 1;
  Tensor loss_sum;           // f64 [1]      accumulated into
  Tensor dindex_q;           // [T, J, Di]   overwritten
  Tensor dindex_weights;     // f32 [T, J]   overwritten
  Tensor dindex_keys;        // f32 [N, Di]  accumulated into
  Tensor workspace;
  Stream stream;
};
void dense_index_loss(const DenseIndexLoss&);
size_t dense_index_loss_workspace_bytes(const DenseIndexLoss&);

}  // namespace hyscale
