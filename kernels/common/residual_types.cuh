// Calls function(R{}, T{}) with the element types of a residual stream and of what a layer computes (residual_types.h).
#pragma once
#include "kernels/common/cuda.cuh"

namespace hyscale {

template <typename Function>
void with_residual_types(DType residual, DType computed, const char* op, Function function) {
  if (residual == DType::f32 && computed == DType::bf16) return function(float{}, bf16{});
  HYSCALE_CHECK(residual == computed, op, " of a residual stream in ", dtype_name(residual), " and rows in ", dtype_name(computed));
  with_float_type(computed, op, [&](auto type) { function(type, type); });
}

}  // namespace hyscale
