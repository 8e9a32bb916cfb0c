// AdamW (decoupled weight decay) on flat tensors, f32 state:
//   g = gate[0] * grad;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   master -= lr * (m / (1 - b1^step) / (sqrt(v / (1 - b2^step)) + eps) + weight_decay * master);  value = master
// With gate[1] == 0 (a non-finite step) nothing changes. The gate is read on the device, so no step waits for the host.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct AdamW {
  Tensor master, m, v;  // f32 [n]
  Tensor grad;          // f32 [n]
  Tensor value;         // f32 or bf16 [n], written; may be the memory of master
  Tensor gate;          // f32 [2] from clip_gate
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0;
  int64_t step = 1;     // updates applied, this one included
  Stream stream;
};
void adamw(const AdamW&);

}  // namespace hyscale
