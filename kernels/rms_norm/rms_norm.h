// RMSNorm over the last dimension: y = (weight_offset + weight) * x * rstd, rstd = (mean(x^2) + eps)^-1/2, all in f32.
// weight_offset is 0, or 1 for zero-centred weights. Backward, with x^ = x * rstd and g = dy * (weight_offset + weight):
//   dx = rstd * (g - x^ * mean(g * x^)),  dweight += sum over rows of dy * x^.
// Rows may be strided (a column slice of a wider tensor); the last dimension is dense. All share a dtype, or x is f32 (a residual stream) and
// weight, y and dy are bf16; then dx is of either dtype. It may be the memory of dy where they are of one dtype.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct RmsNorm {
  Tensor x;       // [T, C]
  Tensor weight;  // [C], dtype of y; or absent: all ones
  float eps = 1e-5f;
  Tensor y;       // [T, C]
  Tensor rstd;    // f32 [T], or absent
  Stream stream;
  float weight_offset = 0;
};
void rms_norm(const RmsNorm&);

struct RmsNormBackward {
  Tensor x, weight, rstd;
  Tensor dy;       // [T, C]
  Tensor dx;       // [T, C]
  bool accumulate_dx = false;  // add to dx instead of overwriting it
  Tensor dweight;  // f32 [C], accumulated into; or absent
  Tensor workspace;
  Stream stream;
  float weight_offset = 0;
};
void rms_norm_backward(const RmsNormBackward&);
size_t rms_norm_backward_workspace_bytes(const RmsNormBackward&);

}  // namespace hyscale
