// SwiGLU: y = silu(gate) * up, silu(g) = g / (1 + exp(-g)); gate and up are the halves of one tensor.
// With a limit L (DeepSeek-V4) gate is min(gate, L) and up is clamped to [-L, L] first; beyond a limit the gradient is 0.
// Backward: dgate = dy * up * s * (1 + gate * (1 - s)), dup = dy * silu(gate), s = sigmoid(gate).
#pragma once
#include <limits>

#include "core/tensor.h"

namespace hyscale {

inline constexpr float kNoLimit = std::numeric_limits<float>::infinity();

struct Swiglu {
  Tensor gate_up;  // [R, 2 I]: gate first
  Tensor y;        // [R, I]
  Stream stream;
  float limit = kNoLimit;
};
void swiglu(const Swiglu&);

struct SwigluBackward {
  Tensor gate_up, dy;
  Tensor dgate_up;  // [R, 2 I], overwritten; may be the memory of gate_up
  Stream stream;
  float limit = kNoLimit;
};
void swiglu_backward(const SwigluBackward&);

}  // namespace hyscale
