// Gates of the gated delta rule from two projections, f32:
//   beta = sigmoid(b),   log_decay = -exp(A_log) softplus(a + dt_bias) <= 0
// Backward: db = dbeta beta (1 - beta);  da = -dlog_decay exp(A_log) sigmoid(a + dt_bias);  ddt_bias += sum_t da;
//           dA_log += sum_t dlog_decay log_decay.
// Source: Gated DeltaNet (arXiv 2412.06464), equation 10.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct DeltaGates {
  Tensor a, b;            // f32 [T, H]
  Tensor a_log, dt_bias;  // f32 [H]
  Tensor log_decay, beta; // f32 [T, H]
  Stream stream;
};
void delta_gates(const DeltaGates&);

struct DeltaGatesBackward {
  Tensor a, a_log, dt_bias, log_decay, beta;  // as in forward
  Tensor dlog_decay, dbeta;  // f32 [T, H]
  Tensor da, db;             // f32 [T, H], overwritten
  Tensor da_log, ddt_bias;   // f32 [H], accumulated into
  Stream stream;
};
void delta_gates_backward(const DeltaGatesBackward&);

}  // namespace hyscale
