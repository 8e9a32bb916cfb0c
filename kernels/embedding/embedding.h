// Embedding: y[t] = weight[token[t]]; backward: dweight[token[t]] += dy[t], summed in the order of t on every device.
// Token ids are checked against the vocabulary where data enters; an id out of range here is an internal error on the CPU.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct Embedding {
  Tensor tokens;  // i32 [T]; -1: a row of zeros
  Tensor weight;  // [V, C]
  Tensor y;       // [T, C], dtype of weight or, with a bf16 weight, f32; rows may be strided
  Stream stream;
};
void embedding(const Embedding&);

struct EmbeddingBackward {
  Tensor tokens;   // i32 [T]; -1: the row is dropped
  Tensor dy;       // [T, C], rows may be strided
  Tensor dweight;  // f32 [V, C], accumulated into
  Tensor workspace;
  Stream stream;
};
void embedding_backward(const EmbeddingBackward&);
size_t embedding_backward_workspace_bytes(const EmbeddingBackward&);

}  // namespace hyscale
