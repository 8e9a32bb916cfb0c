#include "kernels/common/packs.cuh"
#include "kernels/silu/silu.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 16;

// y may be x.
template <typename T, int kWidth>
__global__ void silu_kernel(const T* x, T* y, int64_t packs) {
  for (int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; p < packs; p += static_cast<int64_t>(gridDim.x) * kThreads) {
    float v[kWidth];
    load_pack(x + p * kWidth, v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = v[i] / (1 + __expf(-v[i]));
    store_pack(y + p * kWidth, v);
  }
}

// dx may be dy.
template <typename T, int kWidth>
__global__ void silu_backward_kernel(const T* __restrict__ x, const T* dy, T* dx, int64_t packs) {
  for (int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; p < packs; p += static_cast<int64_t>(gridDim.x) * kThreads) {
    float v[kWidth], d[kWidth];
    load_pack(x + p * kWidth, v);
    load_pack(dy + p * kWidth, d);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float s = 1 / (1 + __expf(-v[i]));
      d[i] *= s * (1 + v[i] * (1 - s));
    }
    store_pack(dx + p * kWidth, d);
  }
}

// All numbers as one row.
Tensor flat(const Tensor& x) { return x.view({1, x.elements()}); }

}  // namespace

void silu_cuda(const Silu& s) {
  const int64_t count = s.x.elements();
  if (count == 0) return;
  with_packs("silu", count, [&](auto type, auto pack) {
    using T = decltype(type);
    silu_kernel<T, pack><<<grid_for(count / pack, kThreads, kMostBlocks), kThreads, 0, stream_of(s.stream)>>>(s.x.data<T>(), s.y.data<T>(), count / pack);
  }, flat(s.x), flat(s.y));
}

void silu_backward_cuda(const SiluBackward& s) {
  const int64_t count = s.x.elements();
  if (count == 0) return;
  with_packs("silu_backward", count, [&](auto type, auto pack) {
    using T = decltype(type);
    silu_backward_kernel<T, pack><<<grid_for(count / pack, kThreads, kMostBlocks), kThreads, 0, stream_of(s.stream)>>>(s.x.data<T>(), s.dy.data<T>(), s.dx.data<T>(), count / pack);
  }, flat(s.x), flat(s.dy), flat(s.dx));
}

}  // namespace hyscale
