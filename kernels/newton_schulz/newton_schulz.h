// Orthogonalises matrices by Newton-Schulz iteration: for g = U S V^T, x comes close to U V^T.
//   x = g / |g|_F, then for every step (a, b, c):  x <- a x + (b A + c A A) x,  A = x x^T
// and the same from the right, with A = x^T x, for matrices that have more rows than columns. A matrix of zeros stays zero.
// Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
#pragma once
#include <span>

#include "core/tensor.h"

namespace hyscale {

// Coefficients of the odd polynomial a s + b s^3 + c s^5, which moves every singular value s of x toward 1.
struct NewtonSchulzStep {
  float a = 0, b = 0, c = 0;
};

struct NewtonSchulz {
  Tensor g;  // f32 [B, M, N]; each matrix is contiguous, the batch may be strided
  Tensor x;  // [B, M, N], contiguous, written: f32 on the CPU, f32 or bf16 on CUDA; products are in this dtype
  std::span<const NewtonSchulzStep> steps;
  Tensor workspace;
  Stream stream;
};
void newton_schulz(const NewtonSchulz&);
size_t newton_schulz_workspace_bytes(const NewtonSchulz&);

}  // namespace hyscale
