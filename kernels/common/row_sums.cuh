// Accumulation of f32 contributions to rows that many blocks share. Either f32 atomics, whose order and so rounding vary,
// or 64-bit fixed point, whose sum does not depend on the order: the scale is the largest power of two for which `terms`
// contributions of at most `bound` cannot overflow.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace hyscale {

// The unit of fixed-point sums; NaN where the bound is not finite, so that finish_fixed_sums spreads it.
struct FixedUnit {
  float scale;    // contributions are multiplied by it, a power of two
  float inverse;
};

__device__ inline FixedUnit fixed_unit(float bound, int64_t terms) {
  if (!isfinite(bound)) return {NAN, NAN};
  if (bound == 0) return {1, 1};
  int exponent = 0;
  frexpf(bound, &exponent);  // bound < 2^exponent
  const int bits = 64 - __clzll(terms);
  const int shift = max(-120, min(120, 62 - bits - exponent));
  return {exp2f(static_cast<float>(shift)), exp2f(static_cast<float>(-shift))};
}

__device__ __forceinline__ void add_fixed(long long* to, float x, float scale) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(__float2ll_rn(x * scale)));
}

// Raises result[0] to max |x|, result[1] to the largest row norm; a NaN or infinity anywhere makes both at least infinite.
// Non-negative floats order like their bits. One warp per row of `width` numbers.
template <typename T>
__global__ void raise_maxima(const T* x, int64_t rows, int width, int64_t stride, float* result) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.x / 32;
  float most = 0, most_norm = 0;
  for (int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32; row < rows; row += warps) {
    float sum = 0;
    for (int c = static_cast<int>(threadIdx.x % 32); c < width; c += 32) {
      const float value = fabsf(static_cast<float>(x[row * stride + c]));
      most = fmaxf(most, isfinite(value) ? value : INFINITY);
      sum += isfinite(value) ? value * value : INFINITY;
    }
    for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    most_norm = fmaxf(most_norm, sqrtf(sum));
  }
  for (int offset = 16; offset; offset /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
  if (threadIdx.x % 32 == 0) {
    atomicMax(reinterpret_cast<int*>(result), __float_as_int(most));
    atomicMax(reinterpret_cast<int*>(result + 1), __float_as_int(most_norm));
  }
}

// to[i] += sums[i] in units; `unit` is computed on the device. to has `rows` rows of `width`, strided.
static __global__ void finish_fixed_sums(float* to, int64_t stride, const long long* sums, int64_t rows, int width, const FixedUnit* unit) {
  const float inverse = unit->inverse;
  const int64_t count = rows * width;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    to[i / width * stride + i % width] += static_cast<float>(static_cast<double>(sums[i]) * inverse);
}

}  // namespace hyscale
