// Multi-token prediction of Qwen3.8: one sparse layer on the streams behind the last one, used `depths` times, each depth predicting
// one token further.
//   R'_i = W_h RMSNorm(R)_i + W_e RMSNorm(Emb(next token)),  R <- Layer(R'),  logits = lm_head(mixer(R))
// RMSNorm(R) has one statistic over all streams; norms are zero-centred. Embedding and LM head are the model's own.
// Source: Qwen3.8 as served (vLLM and SGLang agree); the loss is standard MTP training (DeepSeek-V3 section 2.2).
#pragma once
#include <vector>

#include "models/model.h"
#include "models/qwen/decoder_layer.h"
#include "models/qwen/qwen_head.h"

namespace hyscale {

class QwenMtp {
 public:
  // Depth d selects into slot first_slot + d.
  QwenMtp(ParameterStore&, const std::string& prefix, const QwenConfig&, int depths, int first_slot, Parameter& embedding, Parameter& lm_head);

  // Forward, loss and backward of every depth; adds to d, the gradient of streams. Both [T, n, C].
  void train(Context&, Recompute, const Tensor& streams, const Tensor& d, const Tensor& inv_freq);
  void evaluate(Context&, const Tensor& streams, const Tensor& inv_freq);  // adds to sums.mtp; in the warm-up stage the indexer trains on the way

  Moe& moe() { return layer_.moe(); }
  int depths() const { return depths_; }
  int unit() const { return unit_; }

 private:
  struct Depth {
    Tensor tokens, labels;               // i32 [T]
    Tensor embedded, e_rstd, e_normed;   // [T, C], f32 [1, T], [T, C]
    Tensor streams, h_rstd, h_normed;    // [T, n, C], f32 [1, T], [T, n, C]
    Tensor x, y, dy;                     // [T, n, C]: into and out of the layer
    QwenLayer::Saved layer;
  };
  void join(Context&, const Tensor& streams, int depth, Depth&);
  void join_backward(Context&, const Tensor& dx, const Tensor& d, const Depth&);

  float eps_;
  int depths_, first_slot_, unit_;
  Parameter &embedding_, &lm_head_, &norm_e_, &norm_h_, &proj_e_, &proj_h_;
  QwenLayer layer_;
  QwenHead head_;
};

}  // namespace hyscale
