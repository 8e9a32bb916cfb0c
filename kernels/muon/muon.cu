#include "kernels/common/cuda.cuh"
#include "kernels/muon/muon.h"

namespace hyscale {
namespace {

__global__ void muon_momentum_kernel(float* __restrict__ momentum, float* __restrict__ grad, const float* __restrict__ gate, float mu, int64_t count) {
  if (gate[1] == 0) return;
  const float clip = gate[0];
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const float g = clip * grad[i], m = mu * momentum[i] + g;
    momentum[i] = m;
    grad[i] = g + mu * m;
  }
}

template <typename D, typename T>
__global__ void muon_apply_kernel(float* master, const D* __restrict__ direction, T* value, const float* __restrict__ gate, float lr, float scale, float weight_decay, int64_t count) {
  if (gate[1] == 0) return;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const float p = master[i] - lr * (scale * to_f32(direction[i]) + weight_decay * master[i]);
    master[i] = p;
    value[i] = from_f32<T>(p);
  }
}

}  // namespace

void muon_momentum_cuda(const MuonMomentum& m) {
  const int64_t count = m.grad.elements();
  if (count == 0) return;
  muon_momentum_kernel<<<grid_for(count, 256, 132 * 16), 256, 0, stream_of(m.stream)>>>(m.momentum.f32(), m.grad.f32(), m.gate.f32(), m.mu, count);
  check_launch("muon_momentum");
}

void muon_apply_cuda(const MuonApply& a) {
  const int64_t count = a.master.elements();
  if (count == 0) return;
  with_float_type(a.direction.dtype(), "muon_apply", [&](auto direction_type) {
    with_float_type(a.value.dtype(), "muon_apply", [&](auto value_type) {
      using D = decltype(direction_type);
      using T = decltype(value_type);
      muon_apply_kernel<D, T><<<grid_for(count, 256, 132 * 16), 256, 0, stream_of(a.stream)>>>(a.master.f32(), a.direction.data<D>(), a.value.data<T>(), a.gate.f32(), a.lr, a.scale,
                                                                                              a.weight_decay, count);
    });
  });
  check_launch("muon_apply");
}

}  // namespace hyscale
