#include "kernels/common/packs.cuh"
#include "kernels/swiglu/swiglu.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256;

template <typename T, int kWidth>
__global__ void swiglu_kernel(const T* __restrict__ gate_up, T* __restrict__ y, int64_t rows, int64_t width, float limit) {
  const int64_t packs = rows * width / kWidth;
  for (int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; p < packs; p += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = p * kWidth / width, c = p * kWidth % width;
    float g[kWidth], u[kWidth];
    load_pack(gate_up + row * 2 * width + c, g);
    load_pack(gate_up + row * 2 * width + width + c, u);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float gate = fminf(g[i], limit), up = fminf(fmaxf(u[i], -limit), limit);
      g[i] = gate / (1 + __expf(-gate)) * up;
    }
    store_pack(y + row * width + c, g);
  }
}

// dgate_up may be the memory of gate_up.
template <typename T, int kWidth>
__global__ void swiglu_backward_kernel(const T* gate_up, const T* __restrict__ dy, T* dgate_up, int64_t rows, int64_t width, float limit) {
  const int64_t packs = rows * width / kWidth;
  for (int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; p < packs; p += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = p * kWidth / width, c = p * kWidth % width, gate_at = row * 2 * width + c, up_at = gate_at + width;
    float g[kWidth], u[kWidth], d[kWidth];
    load_pack(gate_up + gate_at, g);
    load_pack(gate_up + up_at, u);
    load_pack(dy + row * width + c, d);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float gate = fminf(g[i], limit), up = fminf(fmaxf(u[i], -limit), limit), s = 1 / (1 + __expf(-gate));
      g[i] = g[i] <= limit ? d[i] * up * s * (1 + gate * (1 - s)) : 0;
      u[i] = fabsf(u[i]) <= limit ? d[i] * gate * s : 0;
    }
    store_pack(dgate_up + gate_at, g);
    store_pack(dgate_up + up_at, u);
  }
}

}  // namespace

void swiglu_cuda(const Swiglu& s) {
  const int64_t rows = s.y.size(0), width = s.y.size(1);
  if (s.y.elements() == 0) return;
  with_packs("swiglu", width, [&](auto type, auto pack) {
    using T = decltype(type);
    swiglu_kernel<T, pack><<<grid_for(rows * width / pack, kThreads, 132 * 16), kThreads, 0, stream_of(s.stream)>>>(s.gate_up.data<T>(), s.y.data<T>(), rows, width, s.limit);
  }, s.y, s.gate_up);
}

void swiglu_backward_cuda(const SwigluBackward& s) {
  const int64_t rows = s.dy.size(0), width = s.dy.size(1);
  if (s.dy.elements() == 0) return;
  with_packs("swiglu_backward", width, [&](auto type, auto pack) {
    using T = decltype(type);
    swiglu_backward_kernel<T, pack><<<grid_for(rows * width / pack, kThreads, 132 * 16), kThreads, 0, stream_of(s.stream)>>>(s.gate_up.data<T>(), s.dy.data<T>(), s.dgate_up.data<T>(),
                                                                                                                       rows, width, s.limit);
  }, s.dy, s.gate_up, s.dgate_up);
}

}  // namespace hyscale
