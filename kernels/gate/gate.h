// A multiplicative gate: y = x a(g), with a = sigmoid or SiLU; one gate for each number, or one for each row.
//   dx = dy a(g),  dg = dy x a'(g), summed over the row where the row has one gate
//   sigmoid' = s (1 - s);  SiLU' = s (1 + g (1 - s)),  s = sigmoid(g)
// Rank 3; the last dimension is dense, the others may be strided.
#pragma once
#include "core/tensor.h"

namespace hyscale {

enum class GateActivation : uint8_t { sigmoid, silu };

struct Gate {
  Tensor x;     // [T, H, D]
  Tensor gate;  // [T, H, D] or [T, H, 1]
  GateActivation activation = GateActivation::sigmoid;
  Tensor y;     // [T, H, D]; may be the memory of x
  Stream stream;
};
void gate(const Gate&);

struct GateBackward {
  Tensor x, gate;
  GateActivation activation = GateActivation::sigmoid;
  Tensor dy;     // [T, H, D]
  Tensor dx;     // [T, H, D], overwritten; may be the memory of dy
  Tensor dgate;  // shape of gate, overwritten
  Stream stream;
};
void gate_backward(const GateBackward&);

}  // namespace hyscale
