// From residual streams to the loss: h = contraction of the streams, RMSNorm, LM head and cross entropy in chunks.
#pragma once
#include "models/layers/hyper_connection.h"

namespace hyscale {

class V4Head {
 public:
  // Hugging Face names: hyper_prefix + fn, base, scale; norm_name.
  V4Head(ParameterStore&, const std::string& hyper_prefix, const std::string& norm_name, const HyperConnectionConfig&);

  struct Saved {
    HyperConnection::Saved hyper;
    Tensor h, rstd, out;  // [T, C], f32 [T], [T, C]
  };
  // What the LM head reads, [T, C].
  Tensor forward(Context&, const Tensor& x, Saved&);
  // Adds the loss to loss_sum; with a gradient of scale `scale`, overwrites d [T, S, C].
  void loss(Context&, const Tensor& x, const Tensor& labels, Parameter& lm_head, const Tensor& loss_sum);
  void train(Context&, const Tensor& x, const Tensor& labels, Parameter& lm_head, double scale, const Tensor& loss_sum, const Tensor& d);

 private:
  float eps_;
  HyperConnection hyper_;
  Parameter& norm_;
};

}  // namespace hyscale
