// Backward of RMSNorm on a parameter, its workspace taken from the scratch arena.
#pragma once
#include "models/context.h"
#include "models/parameter_store.h"

namespace hyscale {

// x, dy, dx [T, C], rows may be strided; weight [C], or a Parameter without values for ones; rstd f32 [T]. dx is overwritten, or added
// to; it may be the memory of dy. Adds to weight.grad.
void rms_norm_backward(Context&, const Tensor& x, const Parameter& weight, const Tensor& rstd, const Tensor& dy, const Tensor& dx, bool accumulate = false);

}  // namespace hyscale
