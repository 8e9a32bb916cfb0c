// LayerNorm over the last dimension, f32 inside: y = weight * x^ + bias, x^ = (x - mean) * rstd, rstd = (var + eps)^-1/2.
// Backward, with g = dy * weight:  dx = rstd * (g - mean(g) - x^ * mean(g * x^)),  dweight += sum dy * x^,  dbias += sum dy.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct LayerNorm {
  Tensor x;             // [T, C], rows may be strided
  Tensor weight, bias;  // [C], dtype of x
  float eps = 1e-6f;
  Tensor y;             // [T, C], dtype of x
  Tensor mean, rstd;    // f32 [T]
  Stream stream;
};
void layer_norm(const LayerNorm&);

struct LayerNormBackward {
  Tensor x, weight, mean, rstd;
  Tensor dy;              // [T, C]  dtype of x, or f32
  Tensor dx;              // [T, C]  dtype of x, overwritten
  Tensor dweight, dbias;  // f32 [C], accumulated into
  Tensor workspace;
  Stream stream;
};
void layer_norm_backward(const LayerNormBackward&);
size_t layer_norm_backward_workspace_bytes(const LayerNormBackward&);

}  // namespace hyscale
