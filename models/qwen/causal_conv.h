// The short convolution (kernels/short_conv) over tokens whose history may lie with a neighbour (models/layers/token_reach.h).
#pragma once
#include "models/context.h"

namespace hyscale {

// y[T, C] from x[T, C]; weight [C, K]. Returns the rows that backward reads, [X, C] of the reach: in the saved arena, or x itself.
Tensor causal_conv(Context&, const Tensor& x, const Tensor& weight, int64_t dilation, const Tensor& y);
// reach as forward returned it. dx[T, C] is overwritten, with what later tokens of other ranks give; dweight is accumulated into.
void causal_conv_backward(Context&, const Tensor& reach, const Tensor& weight, int64_t dilation, const Tensor& dy, const Tensor& dx, const Tensor& dweight);

}  // namespace hyscale
