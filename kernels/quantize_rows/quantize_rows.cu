#include "kernels/common/e4m3.cuh"
#include "kernels/quantize_rows/quantize_rows.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256;

// A warp per row.
template <typename T>
__global__ void __launch_bounds__(kThreads) quantize_rows_kernel(const T* __restrict__ x, int64_t step, e4m3* __restrict__ q, float* __restrict__ scales, int64_t rows, int dims) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32; row < rows; row += static_cast<int64_t>(gridDim.x) * (kThreads / 32)) {
    const T* from = x + row * step;
    float amax = 0;
    bool finite = true;
    for (int d = lane; d < dims; d += 32) {
      const float v = to_f32(from[d]);
      amax = fmaxf(amax, fabsf(v));
      finite = finite && isfinite(v);
    }
    amax = fmaxf(__uint_as_float(__reduce_max_sync(~0u, __float_as_uint(amax))), 1e-4f);  // bits of positive floats rise with them
    int exponent = 0;
    const float fraction = frexpf(amax, &exponent);  // 448 is 0.875 * 2^9
    const float scale = __all_sync(~0u, finite) ? ldexpf(1, fraction <= 0.875f ? exponent - 9 : exponent - 8) : nanf("");
    if (lane == 0) scales[row] = scale;
    for (int d = lane; d < dims; d += 32) q[row * dims + d] = e4m3(to_f32(from[d]) / scale);
  }
}

}  // namespace

void quantize_rows_cuda(const QuantizeRows& r) {
  const int64_t rows = r.x.size(0);
  if (rows == 0) return;
  with_float_type(r.x.dtype(), "quantize_rows", [&](auto type) {
    using T = decltype(type);
    quantize_rows_kernel<T><<<grid_for(rows, kThreads / 32, 132 * 16), kThreads, 0, stream_of(r.stream)>>>(r.x.data<T>(), r.x.stride(0), r.q.data<e4m3>(), r.scales.f32(), rows,
                                                                                                         static_cast<int>(r.x.size(1)));
  });
  check_launch("quantize_rows");
}

}  // namespace hyscale
