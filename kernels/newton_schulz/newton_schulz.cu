#include "kernels/common/cuda.cuh"
#include "kernels/newton_schulz/newton_schulz.h"

namespace hyscale {
namespace {

template <typename T>
__global__ void divide_by_norms_kernel(T* __restrict__ x, const float* __restrict__ g, int64_t batch_step, const double* __restrict__ squares, int64_t per_matrix, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t b = i / per_matrix;
    const double sum = squares[b];
    const float inverse = sum > 0 ? static_cast<float>(rsqrt(sum)) : 0;
    x[i] = from_f32<T>(inverse * g[b * batch_step + i % per_matrix]);
  }
}

}  // namespace

void divide_by_norms_cuda(const Tensor& x, const Tensor& g, const Tensor& squares, Stream stream) {
  with_float_type(x.dtype(), "newton_schulz", [&](auto type) {
    using T = decltype(type);
    divide_by_norms_kernel<T><<<grid_for(x.elements(), 256, 132 * 16), 256, 0, stream_of(stream)>>>(x.data<T>(), g.f32(), g.stride(0), squares.data<double>(),
                                                                                                   g.size(1) * g.size(2), x.elements());
  });
  check_launch("newton_schulz");
}

}  // namespace hyscale
