// Mean of the rows of every block of neighbouring tokens: pooled[e] = 1 / ratio sum over i < ratio of x[first_token[e] + i], f32 sum.
// Backward: dx[first_token[e] + i] = dpooled[e] / ratio; tokens of no block get zeros. No two blocks share a token.
// Rows of x and dx may be strided. CUDA takes f32 or bf16. Source: Qwen3.8 (QSA), report equation 13.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct BlockPool {
  Tensor x;            // [T, D]
  Tensor first_token;  // i32 [E]
  int64_t ratio = 1;
  Tensor pooled;       // [E, D]
  Stream stream;
};
void block_pool(const BlockPool&);

struct BlockPoolBackward {
  Tensor dpooled;      // [E, D]
  Tensor first_token;  // i32 [E]
  int64_t ratio = 1;
  Tensor dx;           // [T, D], overwritten
  Stream stream;
};
void block_pool_backward(const BlockPoolBackward&);

}  // namespace hyscale
