// Manifold-constrained hyper-connections: the residual stream is S parallel streams X [S, D] per token, read and written
// by each sub-layer with weights that depend on X. With v = X as one row of K = S D numbers and r = (mean(v^2) + eps)^-1/2:
//   mix    = r (fn v)                                                       [2 S + S^2], or [S] where only reading is wanted
//   pre_j  = sigmoid(scale_0 mix_j + base_j) + eps                          post_k = 2 sigmoid(scale_1 mix_{S+k} + base_{S+k})
//   comb   = Sinkhorn(scale_2 mix_{2S+jS+k} + base_{2S+jS+k}): softmax over k, + eps; divide columns by (sum + eps); then
//            (iterations - 1) times rows, columns alike. Its first index is the source stream, the second the destination.
//   read:  h = sum_j pre_j X_j            write:  X'_k = post_k y + sum_j comb[j, k] X_j
// Coefficients are f32. Source: DeepSeek-V4 technical report, sections 2.2 and 3.4.2; mHC (arXiv 2512.24880).
#pragma once
#include "core/tensor.h"

namespace hyscale {

inline constexpr int64_t kMaxStreams = 8;  // CUDA: 4 streams exactly

struct HcCoefficients {
  Tensor x;           // [T, S, D]
  Tensor projection;  // f32 [T, n]  fn v of each token; n = S: pre alone
  Tensor base;        // f32 [n]
  Tensor scale;       // f32 [3]; [1] where n = S
  float norm_eps = 1e-6f, eps = 1e-6f;
  int64_t iterations = 20;  // of Sinkhorn, at least 1
  Tensor rstd;        // f32 [T]
  Tensor pre;         // f32 [T, S]
  Tensor post, comb;  // f32 [T, S], [T, S, S]; absent where n = S
  Stream stream;
};
void hc_coefficients(const HcCoefficients&);

struct HcCoefficientsBackward {
  Tensor projection, base, scale, rstd;  // as in forward
  int64_t width = 0;                     // K = S D
  float eps = 1e-6f;
  int64_t iterations = 20;
  Tensor dpre, dpost, dcomb;  // f32, as in forward
  Tensor dprojection;         // f32 [T, n]  overwritten
  Tensor dsquares;            // f32 [T]     overwritten: X gets dsquares * X, the way through r
  Tensor dbase, dscale;       // f32         accumulated into
  Tensor workspace;
  Stream stream;
};
void hc_coefficients_backward(const HcCoefficientsBackward&);
size_t hc_coefficients_backward_workspace_bytes(const HcCoefficientsBackward&);

struct HcRead {
  Tensor x, pre;  // [T, S, D]; f32 [T, S], or absent: all ones
  Tensor h;       // [T, D]  overwritten
  Stream stream;
};
void hc_read(const HcRead&);

// dpre_j = X_j . dh
struct HcReadBackward {
  Tensor x, dh;  // [T, S, D], [T, D]
  Tensor dpre;   // f32 [T, S]  overwritten
  Stream stream;
};
void hc_read_backward(const HcReadBackward&);

struct HcWrite {
  Tensor x, y;        // [T, S, D], [T, D]
  Tensor post, comb;  // f32
  Tensor out;         // [T, S, D]  overwritten
  Stream stream;
};
void hc_write(const HcWrite&);

struct HcWriteBackward {
  Tensor x, y, post, comb;
  Tensor dout;         // [T, S, D]
  Tensor dx;           // [T, S, D]  overwritten; may be the memory of dout
  Tensor dy;           // [T, D]     overwritten
  Tensor dpost, dcomb; // f32        overwritten
  Stream stream;
};
void hc_write_backward(const HcWriteBackward&);

// dx_j += pre_j dh + dsquares X_j: what reaches the streams through reading and through r.
struct HcInputGradient {
  Tensor x, pre, dh, dsquares;
  Tensor dx;  // [T, S, D]  accumulated into
  Stream stream;
};
void hc_input_gradient(const HcInputGradient&);

}  // namespace hyscale
