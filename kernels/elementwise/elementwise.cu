#include "kernels/common/residual_types.cuh"
#include "kernels/elementwise/elementwise.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 16;

// y may be a or b.
template <typename R, typename T, int kWidth>
__global__ void add_kernel(R* y, const R* a, const T* b, int64_t packs) {
  for (int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; p < packs; p += static_cast<int64_t>(gridDim.x) * kThreads) {
    float x[kWidth], z[kWidth];
    load_pack(a + p * kWidth, x);
    load_pack(b + p * kWidth, z);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] += z[i];
    store_pack(y + p * kWidth, x);
  }
}

template <typename T>
__global__ void scale_kernel(T* x, float factor, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * kThreads)
    x[i] = from_f32<T>(to_f32(x[i]) * factor);
}

struct Strides {
  int64_t i, j;
};
template <typename To, typename From, int kWidth>
__global__ void cast_kernel(To* __restrict__ to, Strides to_step, const From* __restrict__ from, Strides from_step, int64_t rows, int64_t columns, int64_t packs) {
  for (int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; p < packs; p += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t at = p * kWidth, c = at % columns, j = at / columns % rows, i = at / columns / rows;
    float x[kWidth];
    load_pack(from + i * from_step.i + j * from_step.j + c, x);
    store_pack(to + i * to_step.i + j * to_step.j + c, x);
  }
}

}  // namespace

void add_cuda(const Tensor& y, const Tensor& a, const Tensor& b, Stream stream) {
  const int64_t count = y.elements();
  if (count == 0) return;
  with_residual_types(y.dtype(), b.dtype(), "add", [&](auto residual, auto type) {
    using R = decltype(residual);
    using T = decltype(type);
    const int pack = common_pack(count, as_rank3(y), as_rank3(a), as_rank3(b)) == 8 && count % 8 == 0 ? 8 : 1;
    const unsigned grid = grid_for(count / pack, kThreads, kMostBlocks);
    pack == 8 ? add_kernel<R, T, 8><<<grid, kThreads, 0, stream_of(stream)>>>(y.data<R>(), a.data<R>(), b.data<T>(), count / 8)
              : add_kernel<R, T, 1><<<grid, kThreads, 0, stream_of(stream)>>>(y.data<R>(), a.data<R>(), b.data<T>(), count);
  });
  check_launch("add");
}

void scale_cuda(const Tensor& x, float factor, Stream stream) {
  if (x.elements() == 0) return;
  with_float_type(x.dtype(), "scale", [&](auto type) {
    using T = decltype(type);
    scale_kernel<T><<<grid_for(x.elements(), kThreads, kMostBlocks), kThreads, 0, stream_of(stream)>>>(x.data<T>(), factor, x.elements());
  });
  check_launch("scale");
}

void cast_cuda(const Tensor& to, const Tensor& from, Stream stream) {
  if (to.elements() == 0) return;
  const Tensor y = as_rank3(to), x = as_rank3(from);
  with_float_type(y.dtype(), "cast", [&](auto to_type) {
    with_float_type(x.dtype(), "cast", [&](auto from_type) {
      using To = decltype(to_type);
      using From = decltype(from_type);
      const int pack = common_pack(y.size(2), y, x);
      const int64_t packs = y.elements() / pack;
      const auto launch = [&](auto kernel) {
        kernel<<<grid_for(packs, kThreads, kMostBlocks), kThreads, 0, stream_of(stream)>>>(y.data<To>(), Strides{y.stride(0), y.stride(1)}, x.data<From>(),
                                                                                          Strides{x.stride(0), x.stride(1)}, y.size(1), y.size(2), packs);
      };
      pack == 8 ? launch(cast_kernel<To, From, 8>) : launch(cast_kernel<To, From, 1>);
    });
  });
  check_launch("cast");
}

}  // namespace hyscale
