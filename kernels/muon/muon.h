// What Muon does to flat tensors before and after its matrices are orthogonalised (kernels/newton_schulz), f32 state:
//   muon_momentum:  g = gate[0] * grad;  momentum = mu * momentum + g;  grad = g + mu * momentum   (Nesterov; the gradient is spent)
//   muon_apply:     master -= lr * (scale * direction + weight_decay * master);  value = master
// With gate[1] == 0 (a step that is not applied) nothing changes. The gate is read on the device, as in kernels/adamw.
// Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; scale and decay as in Liu et al.,
// "Muon is scalable for LLM training", arXiv:2502.16982.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct MuonMomentum {
  Tensor momentum;  // f32 [n]
  Tensor grad;      // f32 [n], read and written
  Tensor gate;      // f32 [2] from clip_gate
  float mu = 0.95f;
  Stream stream;
};
void muon_momentum(const MuonMomentum&);

struct MuonApply {
  Tensor master;     // f32 [n]
  Tensor direction;  // f32 or bf16 [n]
  Tensor value;      // f32 or bf16 [n], written; may be the memory of master
  Tensor gate;       // f32 [2] from clip_gate
  float lr = 0, scale = 1, weight_decay = 0;
  Stream stream;
};
void muon_apply(const MuonApply&);

}  // namespace hyscale
