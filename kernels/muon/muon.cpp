#include "kernels/muon/muon.h"

#include "kernels/common/op.h"
#include "kernels/elementwise/elementwise.h"

namespace hyscale {

void muon_momentum_cuda(const MuonMomentum&);
void muon_apply_cuda(const MuonApply&);

namespace {

void muon_momentum_ref(const MuonMomentum& m) {
  if (m.gate.f32()[1] == 0) return;
  const float clip = m.gate.f32()[0];
  float *momentum = m.momentum.f32(), *grad = m.grad.f32();
  const int64_t n = m.grad.elements();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = clip * grad[i];
    momentum[i] = m.mu * momentum[i] + g;
    grad[i] = g + m.mu * momentum[i];
  }
}

void muon_apply_ref(const MuonApply& a) {
  if (a.gate.f32()[1] == 0) return;
  float* master = a.master.f32();
  const float* direction = a.direction.f32();
  const int64_t n = a.master.elements();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) master[i] -= a.lr * (a.scale * direction[i] + a.weight_decay * master[i]);
  if (a.value.raw() != a.master.raw()) cast(a.value, a.master, a.stream);
}

}  // namespace

void muon_momentum(const MuonMomentum& m) {
  check_tensor(m.momentum, "momentum", DType::f32, {-1});
  check_tensor(m.grad, "grad", DType::f32, m.momentum.shape());
  check_tensor(m.gate, "gate", DType::f32, {2});
  HYSCALE_DISPATCH("muon_momentum", m.grad.device(), muon_momentum_ref(m), muon_momentum_cuda(m));
}

void muon_apply(const MuonApply& a) {
  check_tensor(a.master, "master", DType::f32, {-1});
  check_shape(a.direction, "direction", a.master.shape());
  check_shape(a.value, "value", a.master.shape());
  check_tensor(a.gate, "gate", DType::f32, {2});
  HYSCALE_DISPATCH("muon_apply", a.master.device(), muon_apply_ref(a), muon_apply_cuda(a));
}

}  // namespace hyscale
