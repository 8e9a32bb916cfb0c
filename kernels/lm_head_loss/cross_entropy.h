// Cross entropy of one chunk of logits, turned in place into their gradient. Internal to lm_head_loss.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct CrossEntropy {
  Tensor logits;    // f32 [n, V], read
  Tensor labels;    // i32 [n]
  float grad_scale = 1;
  Tensor dlogits;   // [n, V], overwritten; may be the memory of logits when f32; or absent
  Tensor loss_rows; // f64 [n], overwritten: the loss of each row, 0 without a label
  Tensor loss_sum;  // f64 [1], accumulated into, rows in order
  Stream stream;
};
void cross_entropy(const CrossEntropy&);

}  // namespace hyscale
