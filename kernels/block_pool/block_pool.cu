#include "kernels/block_pool/block_pool.h"
#include "kernels/common/cuda.cuh"

namespace hyscale {
namespace {

constexpr int kThreads = 256;

// One thread per number of `pooled`.
template <typename T>
__global__ void pool(const T* x, int64_t x_stride, const int32_t* first_token, int64_t ratio, T* pooled, int64_t pooled_stride, int64_t blocks, int64_t dims) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < blocks * dims; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t e = i / dims, d = i % dims;
    float sum = 0;
    for (int64_t j = 0; j < ratio; ++j) sum += to_f32(x[(first_token[e] + j) * x_stride + d]);
    pooled[e * pooled_stride + d] = from_f32<T>(sum / static_cast<float>(ratio));
  }
}

// One thread per number of `dpooled`.
template <typename T>
__global__ void spread(const T* dpooled, int64_t dpooled_stride, const int32_t* first_token, int64_t ratio, T* dx, int64_t dx_stride, int64_t blocks, int64_t dims) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < blocks * dims; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t e = i / dims, d = i % dims;
    const T share = from_f32<T>(to_f32(dpooled[e * dpooled_stride + d]) / static_cast<float>(ratio));
    for (int64_t j = 0; j < ratio; ++j) dx[(first_token[e] + j) * dx_stride + d] = share;
  }
}

}  // namespace

void block_pool_cuda(const BlockPool& p) {
  const int64_t blocks = p.pooled.size(0), dims = p.pooled.size(1);
  if (p.pooled.elements() == 0) return;
  with_float_type(p.x.dtype(), "block_pool", [&](auto type) {
    using T = decltype(type);
    pool<T><<<grid_for(blocks * dims, kThreads), kThreads, 0, stream_of(p.stream)>>>(p.x.data<T>(), p.x.stride(0), p.first_token.i32(), p.ratio, p.pooled.data<T>(),
                                                                                     p.pooled.stride(0), blocks, dims);
  });
  check_launch("block_pool");
}

void block_pool_backward_cuda(const BlockPoolBackward& p) {
  const int64_t blocks = p.dpooled.size(0), dims = p.dpooled.size(1);
  if (p.dx.elements() == 0) return;
  with_float_type(p.dx.dtype(), "block_pool_backward", [&](auto type) {
    using T = decltype(type);
    check_cuda(cudaMemset2DAsync(p.dx.raw(), static_cast<size_t>(p.dx.stride(0)) * sizeof(T), 0, static_cast<size_t>(dims) * sizeof(T), static_cast<size_t>(p.dx.size(0)),
                                 stream_of(p.stream)),
               "block_pool_backward: clearing dx");
    if (blocks > 0)
      spread<T><<<grid_for(blocks * dims, kThreads), kThreads, 0, stream_of(p.stream)>>>(p.dpooled.data<T>(), p.dpooled.stride(0), p.first_token.i32(), p.ratio,
                                                                                         p.dx.data<T>(), p.dx.stride(0), blocks, dims);
  });
  check_launch("block_pool_backward");
}

}  // namespace hyscale
