// Small ops over whole tensors. Operands are contiguous and of equal shape; arithmetic is f32.
#pragma once
#include "core/tensor.h"

namespace hyscale {

void add(const Tensor& y, const Tensor& a, const Tensor& b, Stream);  // y = a + b; y may be a or b; one dtype, or y and a f32 and b bf16 (CUDA)
void scale(const Tensor& x, float factor, Stream);                    // x *= factor; f32 or bf16
void cast(const Tensor& to, const Tensor& from, Stream);              // between f32 and bf16, or a plain copy; ranks 2 and 3 may be strided, the last dimension is dense

// Any tensor as three dimensions with a dense last one, ones in front; higher ranks must be contiguous.
Tensor as_rank3(const Tensor&);

}  // namespace hyscale
