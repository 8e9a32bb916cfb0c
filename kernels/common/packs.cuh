// Launches of kernels over rows that move several elements in one access.
#pragma once
#include <type_traits>

#include "kernels/common/cuda.cuh"

namespace hyscale {

// Calls launch(T{}, std::integral_constant<int, width>{}) with the element type of x and the widest access, 8 elements or 1, that
// rows of `columns` allow in all these tensors.
template <typename Launch, typename... Tensors>
void with_packs(const char* op, int64_t columns, Launch launch, const Tensor& x, const Tensors&... others) {
  with_float_type(x.dtype(), op, [&](auto type) {
    if (common_pack(columns, x, others...) == 8) launch(type, std::integral_constant<int, 8>{});
    else launch(type, std::integral_constant<int, 1>{});
  });
  check_launch(op);
}

}  // namespace hyscale
