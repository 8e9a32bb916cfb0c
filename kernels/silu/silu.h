// SiLU: y = x sigmoid(x).   Backward: dx = dy s (1 + x (1 - s)), s = sigmoid(x).
// Contiguous, of any shape.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct Silu {
  Tensor x;
  Tensor y;  // may be the memory of x
  Stream stream;
};
void silu(const Silu&);

struct SiluBackward {
  Tensor x, dy;
  Tensor dx;  // overwritten; may be the memory of dy
  Stream stream;
};
void silu_backward(const SiluBackward&);

}  // namespace hyscale
