// Dtypes of ops between a residual stream and what a layer computes: one for both, or an f32 stream beside bf16.
#pragma once
#include "core/error.h"
#include "core/tensor.h"

namespace hyscale {

inline void check_residual_types(const char* op, const Tensor& residual, const Tensor& computed) {
  HYSCALE_CHECK(residual.dtype() == computed.dtype() || (residual.dtype() == DType::f32 && computed.dtype() == DType::bf16), op, " of a residual stream in ",
                dtype_name(residual.dtype()), " and rows in ", dtype_name(computed.dtype()), "; they are of one dtype, or the stream is f32 and the rows are bf16");
}

}  // namespace hyscale
