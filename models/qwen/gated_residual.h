// Gated residual streams around a sublayer, n streams of C numbers (kernels/gated_residual), with R^ the zero-centred RMSNorm of each
// stream and one gate for every number, through a low rank:
//   a = W_down R^ / n,   g = W_up SiLU(a),   x = mean over streams of sigmoid(g) R^,   u = W_inject R^ / n,   R' = R + 2 sigmoid(u) y
// Without writing, the mixer: what the LM head reads. Source: Qwen3.8, report equations 30 to 34.
#pragma once
#include "models/context.h"
#include "models/parameter_store.h"
#include "models/qwen/qwen_config.h"

namespace hyscale {

class GatedResidual {
 public:
  // Hugging Face names: prefix + hc_norm.weight, input_mix_weight_down.weight, input_mix_weight_up.weight and, when it writes,
  // block_inject_weight.weight.
  GatedResidual(ParameterStore&, const std::string& prefix, const GatedResidualConfig&, bool writes);

  struct Saved {
    Tensor streams, rstd, normed;  // [T, n, C] (the caller's), f32 [n, T], [T, n, C]
    Tensor down, gates;            // [T, r], [T, n, C]
    Tensor logits;                 // f32 [T, n]
    Tensor y;                      // [T, C] (the caller's)
  };
  void read(Context&, const Tensor& streams, const Tensor& x, Saved&);
  // out = the streams that were read + what y gives them.
  void write(Context&, const Tensor& y, const Tensor& out, Saved&);
  // dy is overwritten. Returns dlogits, in the scratch arena.
  Tensor write_backward(Context&, const Tensor& dout, const Tensor& dy, const Saved&);
  // Adds to dstreams. dlogits as write_backward gave it, or absent; it is overwritten.
  void read_backward(Context&, const Tensor& dx, const Tensor& dlogits, const Tensor& dstreams, const Saved&);

 private:
  float share() const { return 1 / static_cast<float>(config_.streams); }

  GatedResidualConfig config_;
  Parameter &norm_, &down_, &up_;
  Parameter* inject_;
};

}  // namespace hyscale
