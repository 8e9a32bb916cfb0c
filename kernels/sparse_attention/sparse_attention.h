// Sparse attention over selected rows, latent MQA form: all heads of a query share one key/value row.
//
//   l[h, s] = scale * q[t, h] . kv[s]             (all Dk numbers)
//   P       = softmax over s in the selection of t
//   out[t, h] = sum_s P[h, s] * kv[s, 0:Dv]       lse[t, h] = log sum_s exp(l[h, s])
// With a sink, one more key of logit sink[h] and value 0 takes part in the softmax: P sums to less than 1, lse includes it,
// and dsink[h] = -sum_t exp(sink[h] - lse[t, h]) (dout[t, h] . out[t, h]).
// A query with no selected row has out 0, lse -inf (the sink's logit where there is one) and zero gradients.
// Sources: GLM-5 / DeepSeek-V3.2 absorbed MLA; DeepSeek-V4, section 2.3.3 (sink).
#pragma once
#include "core/tensor.h"
#include "kernels/flash_topk/selection.h"

namespace hyscale {

struct SparseAttentionForward {
  Tensor q;         // [T, H, Dk]
  Tensor kv;        // [N, Dk]
  Selection selection;  // rows of kv
  float scale = 1;
  Tensor out;       // [T, H, Dv], Dv <= Dk
  Tensor lse;       // f32 [T, H]
  Tensor workspace;
  Stream stream;
  Tensor sink;      // f32 [H], or absent
};
void sparse_attention_forward(const SparseAttentionForward&);
size_t sparse_attention_forward_workspace_bytes(const SparseAttentionForward&);

struct SparseAttentionBackward {
  Tensor q, kv;     // as in forward
  Selection selection;
  float scale = 1;
  Tensor out, lse;  // forward's results
  Tensor dout;      // [T, H, Dv]
  Tensor dq;        // [T, H, Dk]    overwritten
  Tensor dkv;       // f32 [N, Dk]   accumulated into: key role and value role together
  Tensor head_sum;  // f32 [T, k], or absent: sum_h P[h, s] of each selected slot (0 beyond count)
  bool deterministic = false;  // bit-equal dkv across runs (the CPU always is)
  Tensor workspace;
  Stream stream;
  Tensor sink, dsink;  // f32 [H], or absent; dsink is accumulated into
};
void sparse_attention_backward(const SparseAttentionBackward&);
size_t sparse_attention_backward_workspace_bytes(const SparseAttentionBackward&);

}  // namespace hyscale
