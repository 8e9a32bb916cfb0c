// Calls function(R{}, T{}) with the element types of a residual stream and of what a layer computes (residual_types.h).
#pragma once
#include <type_traits>

#include "kernels/common/cuda.cuh"

namespace hyscale {

template <typename Function>
void with_residual_types(DType residual, DType computed, const char* op, Function function) {
  if (residual == DType::f32 && computed == DType::bf16) return function(float{}, bf16{});
  HYSCALE_CHECK(residual == computed, op, " of a residual stream in ", dtype_name(residual), " and rows in ", dtype_name(computed));
  with_float_type(computed, op, [&](auto type) { function(type, type); });
}

// with_packs (packs.cuh) for a residual stream and what a layer computes: launch(R{}, T{}, std::integral_constant<int, width>{}).
template <typename Launch, typename... Tensors>
void with_residual_packs(const char* op, int64_t columns, Launch launch, const Tensor& residual, const Tensor& computed, const Tensors&... others) {
  with_residual_types(residual.dtype(), computed.dtype(), op, [&](auto r, auto type) {
    if (common_pack(columns, residual, computed, others...) == 8) launch(r, type, std::integral_constant<int, 8>{});
    else launch(r, type, std::integral_constant<int, 1>{});
  });
  check_launch(op);
}

}  // namespace hyscale
