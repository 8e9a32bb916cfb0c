// Multi-token prediction: one decoder layer, used `depths` times, each depth predicting one token further.
//   depth d: h' = W_eh [RMSNorm_e(Emb(next token)) | RMSNorm_h(h)],  h <- RMSNorm_head(Layer(h')),  logits = lm_head(h)
// Embedding and LM head are the model's own and get gradient from here. Depth 0 reads h after the final norm.
// Source: DeepSeek-V3 section 2.2; GLM-5 section 2.1 (shared parameters across depths).
#pragma once
#include <vector>

#include "models/glm/decoder_layer.h"
#include "models/model.h"

namespace hyscale {

class GlmMtp {
 public:
  // prefix: "model.layers.N." with N = the number of decoder layers. Depth d selects into slot first_slot + d.
  GlmMtp(ParameterStore&, const std::string& prefix, const GlmConfig&, int depths, int first_slot, Parameter& embedding, Parameter& lm_head);

  // Forward, loss and backward of every depth; adds to dh, the gradient of h. Both [T, C].
  void train(Context&, Recompute, const Tensor& h, const Tensor& dh, const Tensor& inv_freq);
  // Adds to sums.mtp; in the warm-up stage the layer's indexer trains.
  void evaluate(Context&, const Tensor& h, const Tensor& inv_freq);

  Moe* moe() { return layer_.moe(); }
  int depths() const { return depths_; }
  int unit() const { return unit_; }

 private:
  struct Depth {
    Tensor tokens, labels;               // i32 [T]
    Tensor embedded, e_rstd, h, h_rstd;  // [T, C], f32 [T]
    Tensor joined, x;                    // [T, 2 C], [T, C]
    GlmLayer::Saved layer;
    Tensor y, y_rstd, out;               // [T, C], f32 [T], [T, C]
    Tensor dout;                         // [T, C]
  };
  void join(Context&, const Tensor& h, int depth, Depth&);
  void head(Context&, Depth&, bool backward);
  void join_backward(Context&, const Tensor& dx, const Tensor& dh, const Depth&);

  float eps_;
  int depths_, first_slot_, unit_;
  Parameter &embedding_, &lm_head_, &enorm_, &hnorm_, &eh_proj_;
  GlmLayer layer_;
  Parameter& head_norm_;
};

}  // namespace hyscale
