// SwiGLU: y = silu(gate) * up, silu(g) = g / (1 + exp(-g)); gate and up are the halves of one tensor.
// Backward: dgate = dy * up * s * (1 + gate * (1 - s)), dup = dy * silu(gate), s = sigmoid(gate).
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct Swiglu {
  Tensor gate_up;  // [R, 2 I]: gate first
  Tensor y;        // [R, I]
  Stream stream;
};
void swiglu(const Swiglu&);

struct SwigluBackward {
  Tensor gate_up, dy;
  Tensor dgate_up;  // [R, 2 I], overwritten; may be the memory of gate_up
  Stream stream;
};
void swiglu_backward(const SwigluBackward&);

}  // namespace hyscale
