// L2 norm of rows: y = x r, r = (sum x^2 + eps)^-1/2.   Backward: dx = r (dy - y (y . dy)).
// Rank 3; the last dimension is dense, the others may be strided.
// Source: Gated DeltaNet (arXiv 2412.06464), queries and keys.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct L2Norm {
  Tensor x;  // [T, H, D]
  float eps = 1e-6f;
  Tensor y;  // [T, H, D]
  Tensor r;  // f32 [T, H]
  Stream stream;
};
void l2_norm(const L2Norm&);

struct L2NormBackward {
  Tensor y, r;  // forward's results
  Tensor dy;    // [T, H, D]
  Tensor dx;    // [T, H, D], overwritten; may be the memory of dy
  Stream stream;
};
void l2_norm_backward(const L2NormBackward&);

}  // namespace hyscale
