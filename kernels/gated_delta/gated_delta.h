// Gated delta rule: a linear recurrence over a state S [Dk, Dv] for each value head, from zero at every document start.
//   S_t = a_t S_{t-1} + beta_t k_t (v_t - a_t S_{t-1}^T k_t)^T,   o_t = scale S_t^T q_t,   a_t = exp(log_decay_t) <= 1
// Computed in chunks of C tokens; the result is that of the recurrence for any C. With G the running sum of log_decay in the chunk,
// g = exp(G), D_ij = exp(G_i - G_j) for i >= j, r_i = D_{last,i} and rows as tokens:
//   A = strict_lower(diag(beta) K K^T D),   (I + A) U = diag(beta) V,   (I + A) W = diag(beta g) K
//   V' = U - W S,   O = scale (diag(g) Q S + lower(Q K^T D) V'),   S <- g_last S + K^T diag(r) V'
// Only differences of G that are <= 0 are exponentiated. Value head h reads key head h / (Hv / Hk); gradients of a key head are
// sums over its value heads. Source: Gated DeltaNet (arXiv 2412.06464), section 3.3.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct GatedDelta {
  Tensor q, k;             // [T, Hk, Dk]; the last dimension is dense
  Tensor v;                // [T, Hv, Dv]; Hv is a multiple of Hk
  Tensor log_decay, beta;  // f32 [T, Hv]
  Tensor document_starts;  // i32 [P + 1]; first is 0, last is T
  float scale = 1;
  int64_t chunk = 64;
  Tensor o;                // [T, Hv, Dv]
  Tensor workspace;
  Stream stream;
};
void gated_delta(const GatedDelta&);
size_t gated_delta_workspace_bytes(const GatedDelta&);

// Recomputes the states at chunk starts, one head and document at a time.
struct GatedDeltaBackward {
  Tensor q, k, v, log_decay, beta, document_starts;
  float scale = 1;
  int64_t chunk = 64;
  Tensor dout;               // [T, Hv, Dv]
  Tensor dq, dk;             // [T, Hk, Dk], overwritten
  Tensor dv;                 // [T, Hv, Dv], overwritten
  Tensor dlog_decay, dbeta;  // f32 [T, Hv], overwritten
  Tensor workspace;
  Stream stream;
};
void gated_delta_backward(const GatedDeltaBackward&);
size_t gated_delta_backward_workspace_bytes(const GatedDeltaBackward&);

}  // namespace hyscale
