// Linear attention by the gated delta rule (kernels/gated_delta):
//   q | k | v = SiLU(conv(W_qkv x)),  q and k L2-normalized for each head;  beta and decay from W_b x and W_a x
//   y = W_out (w o^ act(W_z x)),  o^ the RMSNorm of each head's output, w a plain weight
// Source: Gated DeltaNet (arXiv 2412.06464); Qwen3.8, report equations 1 to 11.
#pragma once
#include "kernels/gated_delta/delta_states.h"
#include "models/context.h"
#include "models/parameter_store.h"
#include "models/qwen/qwen_config.h"

namespace hyscale {

class GatedDeltaNet {
 public:
  GatedDeltaNet(ParameterStore&, const std::string& prefix, const GatedDeltaConfig&);

  struct Saved {
    Tensor x, qkv_raw, qkv;        // [T, C] (the caller's), [X, 2 K + V] of the reach, [T, 2 K + V]
    Tensor q, q_r, k, k_r;         // [T, Hk, Dk], f32 [T, Hk] each
    Tensor a, b, log_decay, beta;  // f32 [T, Hv]
    Tensor maps, before;           // f32 [N, Hv, Dk, Dk], [N, Hv, Dk, Dv]: of the own segments, where the sequence is spread over ranks
    Tensor o, o_rstd, normed, z;   // [T, Hv, Dv], f32 [T Hv], [T, Hv, Dv], [T, Hv, Dv]
  };
  void forward(Context&, const Tensor& x, const Tensor& y, Saved&);
  // dx[T, C] is overwritten.
  void backward(Context&, const Tensor& dy, const Tensor& dx, const Saved&);

 private:
  // Columns of q, k and v in [T, 2 K + V], by heads.
  Tensor queries(const Tensor& qkv) const { return qkv.slice(1, 0, config_.keys()).split_last(config_.key_heads, config_.key_dim); }
  Tensor keys(const Tensor& qkv) const { return qkv.slice(1, config_.keys(), 2 * config_.keys()).split_last(config_.key_heads, config_.key_dim); }
  Tensor values(const Tensor& qkv) const { return qkv.slice(1, 2 * config_.keys(), qkv.size(1)).split_last(config_.value_heads, config_.value_dim); }
  Tensor taps(const Tensor& weight) const { return weight.view({weight.size(0), weight.size(2)}); }
  float scale() const;
  void delta_rule(Context&, Saved&);
  CarriedStates states_before(Context&, Saved&);
  CarriedStates gradients_behind(Context&, const Tensor& dout, const Saved&);
  void backward_heads(Context&, const Tensor& dout, const Tensor& dqkv, const Tensor& dx, const Saved&);

  GatedDeltaConfig config_;
  Parameter &qkv_, &z_, &b_, &a_, &conv_, &a_log_, &dt_bias_, &norm_, &out_;
};

}  // namespace hyscale
