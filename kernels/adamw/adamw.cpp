#include "kernels/adamw/adamw.h"

#include <cmath>

#include "kernels/common/op.h"
#include "kernels/elementwise/elementwise.h"

namespace hyscale {

void adamw_cuda(const AdamW&);

namespace {

void adamw_ref(const AdamW& a) {
  if (a.gate.f32()[1] == 0) return;
  const float clip = a.gate.f32()[0];
  const float correct1 = static_cast<float>(1 / (1 - std::pow(double{a.beta1}, static_cast<double>(a.step))));
  const float correct2 = static_cast<float>(1 / (1 - std::pow(double{a.beta2}, static_cast<double>(a.step))));
  float *master = a.master.f32(), *m = a.m.f32(), *v = a.v.f32(), *grad = a.grad.f32();
  const int64_t n = a.master.elements();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = clip * grad[i];
    m[i] = a.beta1 * m[i] + (1 - a.beta1) * g;
    v[i] = a.beta2 * v[i] + (1 - a.beta2) * g * g;
    master[i] -= a.lr * (m[i] * correct1 / (std::sqrt(v[i] * correct2) + a.eps) + a.weight_decay * master[i]);
  }
  if (a.value.raw() != a.master.raw()) cast(a.value, a.master, a.stream);
}

}  // namespace

void adamw(const AdamW& a) {
  for (const Tensor* t : {&a.master, &a.m, &a.v, &a.grad}) check_tensor(*t, "state of adamw", DType::f32, {-1});
  for (const Tensor* t : {&a.m, &a.v, &a.grad, &a.value}) check_shape(*t, "state of adamw", a.master.shape());
  check_tensor(a.gate, "gate", DType::f32, {2});
  HYSCALE_CHECK(a.step >= 1, "step is ", a.step);
  HYSCALE_DISPATCH("adamw", a.master.device(), adamw_ref(a), adamw_cuda(a));
}

}  // namespace hyscale
