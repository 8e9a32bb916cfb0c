// Dense causal attention, forward only: the warm-up stage trains no trunk, so nothing flows back through it.
//   l[h, s] = scale * q[t, h] . k[s, g],  P = softmax over begin[t] <= s < end[t],  out[t, h] = sum_s P v[s, g],  g = h / (H / G),
//   lse[t, h] = log sum exp l
// Tiled over keys with a running maximum: memory O(T). A query that sees nothing has out 0 and lse -inf.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct DenseAttention {
  Tensor q;    // [T, H, D]
  Tensor k;    // [N, G, D], H a multiple of G
  Tensor v;    // [N, G, Dv]
  Tensor begin, end;  // i32 [T]: visible keys of each query
  float scale = 1;
  Tensor out;  // [T, H, Dv]
  Tensor lse;  // f32 [T, H]
  Tensor workspace;
  Stream stream;
};
void dense_attention(const DenseAttention&);
size_t dense_attention_workspace_bytes(const DenseAttention&);

}  // namespace hyscale
