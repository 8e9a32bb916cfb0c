// Small things every CUDA op uses: streams, launch checks, element types, packs of eight, reductions.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"

namespace hyscale {

inline cudaStream_t stream_of(Stream s) { return static_cast<cudaStream_t>(s.handle); }

inline void check_cuda(cudaError_t error, const char* what) { HYSCALE_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error)); }
inline void check_launch(const char* op) { check_cuda(cudaGetLastError(), op); }

inline unsigned grid_for(int64_t items, int64_t per_block, int64_t most = 1 << 20) {
  return static_cast<unsigned>(std::max<int64_t>(1, std::min((items + per_block - 1) / per_block, most)));
}

using bf16 = __nv_bfloat16;

// Calls function(T{}) with T = float or bf16.
template <typename Function>
void with_float_type(DType dtype, const char* op, Function function) {
  if (dtype == DType::f32) return function(float{});
  if (dtype == DType::bf16) return function(bf16{});
  throw InternalError(concat(op, " of ", dtype_name(dtype)));
}

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(bf16 x) { return __bfloat162float(x); }
template <typename T>
__device__ __forceinline__ T from_f32(float x);
template <>
__device__ __forceinline__ float from_f32<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ bf16 from_f32<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// kWidth neighbouring elements, moved in one access where they are aligned to their own size.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T items[kWidth];
};

// Elements per access that base address, row steps and length allow: 8 or 1.
template <typename... Tensors>
int common_pack(int64_t columns, const Tensors&... tensors) {
  const auto fits = [](const Tensor& t) {
    if (!t.defined()) return true;
    const uint64_t width = 8 * dtype_bytes(t.dtype());
    bool steps = reinterpret_cast<uint64_t>(t.raw()) % std::min<uint64_t>(width, 16) == 0;
    for (int d = 0; d + 1 < t.rank(); ++d) steps = steps && t.stride(d) % 8 == 0;
    return steps;
  };
  return columns % 8 == 0 && (fits(tensors) && ...) ? 8 : 1;
}

template <typename T, int kWidth>
__device__ __forceinline__ void load_pack(const T* from, float (&to)[kWidth]) {
  if constexpr (sizeof(T) * kWidth == 32) {
    const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
  } else {
    const Pack<T, kWidth> pack = *reinterpret_cast<const Pack<T, kWidth>*>(from);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[i] = to_f32(pack.items[i]);
  }
}
template <typename T, int kWidth>
__device__ __forceinline__ void store_pack(T* to, const float (&from)[kWidth]) {
  if constexpr (sizeof(T) * kWidth == 32) {
    reinterpret_cast<float4*>(to)[0] = make_float4(from[0], from[1], from[2], from[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(from[4], from[5], from[6], from[7]);
  } else {
    Pack<T, kWidth> pack;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) pack.items[i] = from_f32<T>(from[i]);
    *reinterpret_cast<Pack<T, kWidth>*>(to) = pack;
  }
}

template <typename T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// Sum over a block of kThreads threads, the same bits in every thread and every run.
template <int kThreads, typename T>
__device__ __forceinline__ T block_sum(T x) {
  __shared__ T parts[kThreads / 32];
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = parts[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) sum += parts[i];
  return sum;
}
template <int kThreads>
__device__ __forceinline__ float block_max(float x) {
  __shared__ float parts[kThreads / 32];
  x = warp_max(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float most = parts[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) most = fmaxf(most, parts[i]);
  return most;
}

}  // namespace hyscale
