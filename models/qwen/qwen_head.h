// From residual streams to the loss: the mixer's gated mean, LM head and cross entropy in chunks. There is no final norm.
#pragma once
#include "models/qwen/gated_residual.h"

namespace hyscale {

class QwenHead {
 public:
  // prefix: of the mixer.
  QwenHead(ParameterStore& store, const std::string& prefix, const GatedResidualConfig& c) : mixer_(store, prefix, c, false) {}

  // What the LM head reads, [T, C], in the saved arena.
  Tensor forward(Context&, const Tensor& streams, GatedResidual::Saved&);
  // Adds the loss to loss_sum; train overwrites d [T, n, C] with a gradient of scale `scale`.
  void loss(Context&, const Tensor& streams, const Tensor& labels, Parameter& lm_head, const Tensor& loss_sum);
  void train(Context&, const Tensor& streams, const Tensor& labels, Parameter& lm_head, double scale, const Tensor& loss_sum, const Tensor& d);

 private:
  GatedResidual mixer_;
};

}  // namespace hyscale
