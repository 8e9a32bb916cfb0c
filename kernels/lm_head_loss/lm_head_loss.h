// LM head and cross entropy, fused over chunks of tokens: the logits of all tokens never exist at once.
//   z[t] = h[t] weight^T,   loss(t) = log sum_v exp z[t, v] - z[t, label[t]]   for labels >= 0
//   loss_sum += sum of loss(t)                                    (f64, without grad_scale)
//   dz = grad_scale * (softmax(z) - onehot), dh = dz weight, dweight += dz^T h
// Without dh and dweight only the loss is computed. Rows without a label get a zero gradient.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct LmHeadLoss {
  Tensor h;         // [T, C]
  Tensor weight;    // [V, C], dtype of h
  Tensor labels;    // i32 [T]; -1: none
  float grad_scale = 1;
  Tensor loss_sum;  // f64 [1], accumulated into
  Tensor dh;        // [T, C], overwritten; or absent
  Tensor dweight;   // f32 [V, C], accumulated into; or absent
  Tensor workspace;
  Stream stream;
};
void lm_head_loss(const LmHeadLoss&);
size_t lm_head_loss_workspace_bytes(const LmHeadLoss&);

}  // namespace hyscale
