#include "kernels/gated_delta/delta_gates.h"

#include <cmath>

#include "kernels/common/host_device.h"
#include "kernels/common/op.h"
#include "kernels/common/rows.h"

namespace hyscale {

void delta_gates_cuda(const DeltaGates&);
void delta_gates_backward_cuda(const DeltaGatesBackward&);

namespace {

void delta_gates_ref(const DeltaGates& g) {
  const int64_t tokens = g.a.size(0), heads = g.a.size(1);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = t * heads + h;
      g.beta.f32()[at] = sigmoid(g.b.f32()[at]);
      g.log_decay.f32()[at] = -std::exp(g.a_log.f32()[h]) * softplus(g.a.f32()[at] + g.dt_bias.f32()[h]);
    }
}

void delta_gates_backward_ref(const DeltaGatesBackward& g) {
  const int64_t tokens = g.a.size(0), heads = g.a.size(1);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = t * heads + h;
      const float beta = g.beta.f32()[at];
      g.db.f32()[at] = g.dbeta.f32()[at] * beta * (1 - beta);
      g.da.f32()[at] = -g.dlog_decay.f32()[at] * std::exp(g.a_log.f32()[h]) * sigmoid(g.a.f32()[at] + g.dt_bias.f32()[h]);
    }
  add_column_sums(g.ddt_bias.f32(), tokens, heads, [&](int64_t t, int64_t h) { return g.da.f32()[t * heads + h]; });
  add_column_sums(g.da_log.f32(), tokens, heads, [&](int64_t t, int64_t h) { return g.dlog_decay.f32()[t * heads + h] * g.log_decay.f32()[t * heads + h]; });
}

void check_gates(const Tensor& a, const Tensor& a_log, const Tensor& dt_bias, const Tensor& log_decay, const Tensor& beta) {
  check_tensor(a, "a", DType::f32, {-1, -1});
  check_tensor(a_log, "a_log", DType::f32, {a.size(1)});
  check_tensor(dt_bias, "dt_bias", DType::f32, {a.size(1)});
  check_tensor(log_decay, "log_decay", DType::f32, a.shape());
  check_tensor(beta, "beta", DType::f32, a.shape());
}

}  // namespace

void delta_gates(const DeltaGates& g) {
  check_gates(g.a, g.a_log, g.dt_bias, g.log_decay, g.beta);
  check_tensor(g.b, "b", DType::f32, g.a.shape());
  HYSCALE_DISPATCH("delta_gates", g.a.device(), delta_gates_ref(g), delta_gates_cuda(g));
}

void delta_gates_backward(const DeltaGatesBackward& g) {
  check_gates(g.a, g.a_log, g.dt_bias, g.log_decay, g.beta);
  check_tensor(g.dlog_decay, "dlog_decay", DType::f32, g.a.shape());
  check_tensor(g.dbeta, "dbeta", DType::f32, g.a.shape());
  check_tensor(g.da, "da", DType::f32, g.a.shape());
  check_tensor(g.db, "db", DType::f32, g.a.shape());
  check_tensor(g.da_log, "da_log", DType::f32, g.a_log.shape());
  check_tensor(g.ddt_bias, "ddt_bias", DType::f32, g.dt_bias.shape());
  HYSCALE_DISPATCH("delta_gates_backward", g.a.device(), delta_gates_backward_ref(g), delta_gates_backward_cuda(g));
}

}  // namespace hyscale
