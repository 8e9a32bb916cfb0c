// Index loss over the selected set: teaches the indexer the attention it selects for.
//
//   p[t, .] = head_sum[t, .] / sum(head_sum[t, .])   (teacher, a constant)
//   r[t, .] = softmax over the selected s of score(t, s)   (score as in flash_topk.h)
//   loss_sum += sum_t sum_s p (log p - log r)         0 log 0 = 0; a query without selected keys adds 0
//   dscore[t, s] = grad_scale * (r - p), then through relu and weights to q, w and keys.
// Source: DeepSeek-V3.2 section 2.1.1.
#pragma once
#include "core/tensor.h"
#include "kernels/flash_topk/selection.h"

namespace hyscale {

// CUDA takes q, keys and dq in bf16 with f32 sums, and all three in f32 without tensor cores.
struct IndexLoss {
  Tensor q;         // [T, H, D]     indexer queries
  Tensor weights;   // f32 [T, H], or absent: all ones
  Tensor keys;      // [N, D]
  Selection selection;
  Tensor head_sum;  // f32 [T, k] from sparse_attention_backward
  float grad_scale = 1;  // loss coefficient / number of queries of the step
  Tensor loss_sum;  // f64 [1]       accumulated into, without grad_scale
  Tensor dq;        // [T, H, D]     overwritten
  Tensor dweights;  // f32 [T, H]    overwritten; absent with weights
  Tensor dkeys;     // f32 [N, D]    accumulated into
  bool deterministic = false;
  Tensor workspace;
  Stream stream;
};
void index_loss(const IndexLoss&);
size_t index_loss_workspace_bytes(const IndexLoss&);

}  // namespace hyscale
