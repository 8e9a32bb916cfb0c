// e4m3 on the device: 8-bit floats with 4 bits of exponent and 3 of mantissa, up to 448, without infinities.
#pragma once
#include <cuda_fp8.h>

#include "kernels/common/cuda.cuh"

namespace hyscale {

using e4m3 = __nv_fp8_e4m3;

__device__ __forceinline__ float to_f32(e4m3 x) { return static_cast<float>(x); }

}  // namespace hyscale
