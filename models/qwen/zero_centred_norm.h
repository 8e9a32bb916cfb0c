// RMSNorm with zero-centred weights, y = (1 + w) x^, over one group of columns or over several of equal width side by side.
#pragma once
#include "models/context.h"
#include "models/parameter_store.h"

namespace hyscale {

// Zeros, without weight decay.
Parameter zero_centred_weight(const std::string& name, int64_t size, ParameterGroup group = ParameterGroup::trunk);

// x, y [T, G C]; weight [G C]; rstd f32 [G, T]. Rows of x and y may be strided.
void group_norm(Context&, const Tensor& x, const Parameter& weight, float eps, const Tensor& y, const Tensor& rstd);
// dx [T, G C] is overwritten, or added to; it may be the memory of dy.
void group_norm_backward(Context&, const Tensor& x, const Parameter& weight, const Tensor& rstd, const Tensor& dy, const Tensor& dx, bool accumulate = false);

}  // namespace hyscale
