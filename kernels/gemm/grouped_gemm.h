// One product per expert over rows that are grouped by expert: rows offsets[e] .. offsets[e + 1] belong to expert e.
//   forward: y[R, N]  = x[R, K] w[e]^T        w [E, N, K]
//   dgrad:   dx[R, K] = dy[R, N] w[e]
//   wgrad:   dw[e]   += dy_e^T x_e            f32
// offsets is i32 [E + 1] on the device of the rows and is read there only: no host synchronisation. Groups may be empty.
// Rows beyond offsets[E] are left alone. CUDA takes bf16 with f32 sums, and f32 without tensor cores.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct GroupedGemm {
  Tensor x;        // [R, K]     (dgrad: written; wgrad, forward: read)
  Tensor w;        // [E, N, K]  (wgrad: f32, accumulated into)
  Tensor y;        // [R, N]     (forward: written)
  Tensor offsets;  // i32 [E + 1]
  Stream stream;
};
void grouped_gemm_forward(const GroupedGemm&);
void grouped_gemm_dgrad(const GroupedGemm&);
void grouped_gemm_wgrad(const GroupedGemm&);

}  // namespace hyscale
