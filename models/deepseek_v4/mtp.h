// Multi-token prediction of DeepSeek-V4: one further layer on the streams behind the last one, for the token after next.
//   X'_j = W_h RMSNorm_h(X_j) + W_e RMSNorm_e(Emb(next token));  layer (sliding window, routed experts), own head; shared LM head
// Source: DeepSeek-V4 technical report and reference inference.
#pragma once
#include "models/deepseek_v4/decoder_layer.h"
#include "models/deepseek_v4/v4_head.h"
#include "models/model.h"

namespace hyscale {

class V4Mtp {
 public:
  V4Mtp(ParameterStore&, const std::string& prefix, const V4Config&, Parameter& embedding, Parameter& lm_head);

  // Forward, loss and backward; adds to d, the gradient of x. Both [T, S, C].
  void train(Context&, Recompute, const Tensor& x, const Tensor& d, const V4Rope&);
  void evaluate(Context&, const Tensor& x, const V4Rope&);  // adds to sums.mtp

  Moe& moe() { return layer_.moe(); }
  int unit() const { return unit_; }

 private:
  struct Joined {
    Tensor embedded, e_rstd, e_normed;  // [T, C], f32 [T], [T, C]
    Tensor x, h_rstd, h_normed;         // [T, S, C] (the caller's), f32 [T S], [T S, C]
    Tensor joined;                      // [T, S, C]
  };
  void join(Context&, const Tensor& x, Joined&);
  void join_backward(Context&, const Tensor& djoined, const Tensor& d, const Joined&);

  float eps_;
  int unit_;
  int64_t streams_;
  Parameter &embedding_, &lm_head_, &enorm_, &hnorm_, &e_proj_, &h_proj_;
  V4Layer layer_;
  V4Head head_;
};

}  // namespace hyscale
