#include "kernels/common/cuda.cuh"
#include "kernels/elementwise/elementwise.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 16;

// y may be a or b.
template <typename T, int kWidth>
__global__ void add_kernel(T* y, const T* a, const T* b, int64_t packs) {
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
// Index: 32 bits where they suffice, since dividing 64-bit numbers takes longer than moving a pack.
template <typename Index, typename To, typename From, int kWidth>
__global__ void cast_kernel(To* __restrict__ to, Strides to_step, const From* __restrict__ from, Strides from_step, Index rows, Index row_packs, Index packs) {
  for (Index p = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; p < packs; p += static_cast<Index>(gridDim.x) * kThreads) {
    const Index row = p / row_packs;
    const int64_t c = static_cast<int64_t>(p - row * row_packs) * kWidth, i = row / rows, j = row - static_cast<Index>(i) * rows;
    float x[kWidth];
    load_pack(from + i * from_step.i + j * from_step.j + c, x);
    store_pack(to + i * to_step.i + j * to_step.j + c, x);
  }
}

}  // namespace

void add_cuda(const Tensor& y, const Tensor& a, const Tensor& b, Stream stream) {
  const int64_t count = y.elements();
  if (count == 0) return;
  with_float_type(y.dtype(), "add", [&](auto type) {
    using T = decltype(type);
    const int pack = common_pack(count, as_rank3(y), as_rank3(a), as_rank3(b)) == 8 && count % 8 == 0 ? 8 : 1;
    const unsigned grid = grid_for(count / pack, kThreads, kMostBlocks);
    pack == 8 ? add_kernel<T, 8><<<grid, kThreads, 0, stream_of(stream)>>>(y.data<T>(), a.data<T>(), b.data<T>(), count / 8)
              : add_kernel<T, 1><<<grid, kThreads, 0, stream_of(stream)>>>(y.data<T>(), a.data<T>(), b.data<T>(), count);
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
      const auto launch = [&](auto index, auto width) {
        using Index = decltype(index);
        constexpr int kWidth = decltype(width)::value;
        const int64_t packs = y.elements() / kWidth;
        cast_kernel<Index, To, From, kWidth><<<grid_for(packs, kThreads, kMostBlocks), kThreads, 0, stream_of(stream)>>>(
            y.data<To>(), Strides{y.stride(0), y.stride(1)}, x.data<From>(), Strides{x.stride(0), x.stride(1)}, static_cast<Index>(y.size(1)), static_cast<Index>(y.size(2) / kWidth),
            static_cast<Index>(packs));
      };
      const auto of_width = [&](auto width) { y.elements() < int64_t{1} << 31 ? launch(uint32_t{}, width) : launch(int64_t{}, width); };
      common_pack(y.size(2), y, x) == 8 ? of_width(std::integral_constant<int, 8>{}) : of_width(std::integral_constant<int, 1>{});
    });
  });
  check_launch("cast");
}

}  // namespace hyscale
