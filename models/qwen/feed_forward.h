// Experts with a gated shared expert: y = MoE(x) + sigmoid(w x) Shared(x).
#pragma once
#include "models/layers/moe.h"
#include "models/qwen/qwen_config.h"

namespace hyscale {

class QwenFeedForward {
 public:
  // Hugging Face names: those of Moe, prefix + shared_expert.*, shared_expert_gate.weight [1, C].
  QwenFeedForward(ParameterStore&, const std::string& prefix, const QwenConfig&);

  struct Saved {
    Moe::Saved moe;
    Mlp::Saved shared;
    Tensor x, shared_out, gate;  // [T, C] (the caller's), [T, C], f32 [T, 1]
  };
  // y and d, its gradient, [T, C], are of the activation's or the residual's dtype.
  void forward(Context&, Pass, const Tensor& x, const Tensor& y, Saved&);
  // dx[T, C] is overwritten.
  void backward(Context&, const Tensor& d, const Tensor& dx, const Saved&);

  Moe& moe() { return moe_; }

 private:
  Moe moe_;
  Mlp shared_;
  Parameter& gate_;
};

}  // namespace hyscale
