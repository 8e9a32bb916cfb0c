// Gate of an n-gram memory: each stream of a token decides how much of one value row it takes.
//   u[i] = key[i] . query[i] / sqrt(C),   g[i] = sigmoid(sign(u) sqrt(max(|u|, 1e-6))),   out[i] = g[i] value
// Backward: dvalue = sum_i g[i] dout[i];  du = (dout[i] . value) g (1 - g) / (2 sqrt(|u|)) where |u| > 1e-6, else 0;
//           dkey = du query / sqrt(C), dquery = du key / sqrt(C).
// All tensors are contiguous. Source: Qwen3.8, n-gram embedding.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct NgramGate {
  Tensor keys, queries;  // [T, n, C], normalized
  Tensor values;         // [T, C]
  Tensor scores;         // f32 [T, n]: u
  Tensor out;            // [T, n, C]
  Stream stream;
};
void ngram_gate(const NgramGate&);

struct NgramGateBackward {
  Tensor keys, queries, values, scores;
  Tensor dout;             // [T, n, C]
  Tensor dkeys, dqueries;  // [T, n, C], overwritten
  Tensor dvalues;          // [T, C], overwritten
  Stream stream;
};
void ngram_gate_backward(const NgramGateBackward&);

}  // namespace hyscale
