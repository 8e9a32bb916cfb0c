// Gradient norm and clipping without leaving the device.
#pragma once
#include <array>

#include "core/tensor.h"

namespace hyscale {

// sum[0] += sum of squares of x, in f64, in a fixed order.
struct SumOfSquares {
  Tensor x;    // f32, contiguous
  Tensor sum;  // f64 [1]
  Tensor workspace;
  Stream stream;
};
void sum_of_squares(const SumOfSquares&);
size_t sum_of_squares_workspace_bytes(const SumOfSquares&);

// gate[0] = min(1, max_norm / (sqrt(sum) + 1e-6)), gate[1] = 1 when every sum is finite and no value is above its bound, else 0
// (and gate[0] = 0). max_norm 0: never clip. `must_be_finite` are further sums (losses, norms of other groups); f64 [n] each, or absent.
struct UpperBound {
  Tensor value;  // f64 [1], or absent
  double most = 0;
};
struct ClipGate {
  Tensor sum;     // f64 [1]: sum of squares of all gradients
  std::array<Tensor, 2> must_be_finite;
  float max_norm = 0;
  Tensor gate;    // f32 [2]
  Stream stream;
  std::array<UpperBound, 3> bounds = {};
};
void clip_gate(const ClipGate&);

}  // namespace hyscale
