#include <cmath>

#include "kernels/adamw/adamw.h"
#include "kernels/common/cuda.cuh"

namespace hyscale {
namespace {

template <typename T>
__global__ void adamw_kernel(float* master, float* __restrict__ m, float* __restrict__ v, const float* __restrict__ grad, T* value, const float* __restrict__ gate,
                             float lr, float beta1, float beta2, float eps, float weight_decay, float correct1, float correct2, int64_t count) {
  if (gate[1] == 0) return;
  const float clip = gate[0];
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const float g = clip * grad[i];
    const float first = beta1 * m[i] + (1 - beta1) * g, second = beta2 * v[i] + (1 - beta2) * g * g;
    m[i] = first;
    v[i] = second;
    const float p = master[i] - lr * (first * correct1 / (sqrtf(second * correct2) + eps) + weight_decay * master[i]);
    master[i] = p;
    value[i] = from_f32<T>(p);
  }
}

}  // namespace

void adamw_cuda(const AdamW& a) {
  const int64_t count = a.master.elements();
  if (count == 0) return;
  const float correct1 = static_cast<float>(1 / (1 - std::pow(double{a.beta1}, static_cast<double>(a.step))));
  const float correct2 = static_cast<float>(1 / (1 - std::pow(double{a.beta2}, static_cast<double>(a.step))));
  with_float_type(a.value.dtype(), "adamw", [&](auto type) {
    using T = decltype(type);
    adamw_kernel<T><<<grid_for(count, 256, 132 * 16), 256, 0, stream_of(a.stream)>>>(a.master.f32(), a.m.f32(), a.v.f32(), a.grad.f32(), a.value.data<T>(), a.gate.f32(),
                                                                                     a.lr, a.beta1, a.beta2, a.eps, a.weight_decay, correct1, correct2, count);
  });
  check_launch("adamw");
}

}  // namespace hyscale
