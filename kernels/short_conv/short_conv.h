// Causal depthwise convolution over few tokens, then SiLU; every document begins with an empty history.
//   u[t, c] = sum over j of w[c, j] x[t - (K - 1 - j) dilation, c]     y = u sigmoid(u)
// Backward: du = dy s (1 + u (1 - s));  dx[t] = sum_j w[j] du[t + (K - 1 - j) dilation];  dw[j] += sum_t du[t] x[t - ...].
// x, y, dy, dx are contiguous. Source: Gated DeltaNet (arXiv 2412.06464); dilation: Qwen3.8.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct ShortConv {
  Tensor x;          // [T, C]
  Tensor weight;     // [C, K]: the last tap meets the current token
  Tensor positions;  // i32 [T]: of a token in its document
  int64_t dilation = 1;
  Tensor y;          // [T, C]
  Stream stream;
};
void short_conv(const ShortConv&);

struct ShortConvBackward {
  Tensor x, weight, positions;
  int64_t dilation = 1;
  Tensor dy;       // [T, C]
  Tensor dx;       // [T, C], overwritten
  Tensor dweight;  // f32 [C, K], accumulated into
  Tensor workspace;
  Stream stream;
};
void short_conv_backward(const ShortConvBackward&);
size_t short_conv_backward_workspace_bytes(const ShortConvBackward&);

}  // namespace hyscale
