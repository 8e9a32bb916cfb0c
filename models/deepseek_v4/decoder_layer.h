// One DeepSeek-V4 layer on the residual streams X [S, C] of each token: attention, then experts, each behind hyper-connections.
//   h = read(X);  X <- write(X, F(RMSNorm(h)))
// X, h, what F gives and their gradients are of the residual's dtype.
#pragma once
#include "models/deepseek_v4/shared_kv_attention.h"

namespace hyscale {

// Inverse rope frequencies on the device, f32 [rope_dim / 2]: layers with compressed entries have their own.
struct V4Rope {
  Tensor plain, compressed;
  const Tensor& of(Compression c) const { return c == Compression::none ? plain : compressed; }
};

class V4Layer {
 public:
  // Hugging Face names: prefix + attn.*, ffn.*, attn_norm.weight, ffn_norm.weight, hc_attn_*, hc_ffn_*.
  V4Layer(ParameterStore&, const std::string& prefix, const V4Config&, Compression, int64_t ratio, bool hashed);

  struct Site {
    HyperConnection::Saved hyper;
    Tensor h, rstd, u, y;  // [T, C], f32 [T], [T, C], [T, C]
  };
  struct Saved {
    Site attention_site, feed_forward_site;
    SharedKvAttention::Saved attention;
    Tensor x1;             // [T, S, C] between the two
    Moe::Saved moe;
  };
  // x, out [T, S, C], two memories.
  void forward(Context&, Pass, int slot, const Tensor& x, const Tensor& out, const V4Rope&, Saved&);
  // Turns d, the gradient of out, into that of x.
  void backward(Context&, int slot, const Tensor& d, const V4Rope&, const Saved&);

  Moe& moe() { return moe_; }

 private:
  void enter(Context&, const Tensor& x, HyperConnection&, const Parameter& norm, Site&);
  void leave_backward(Context&, const Tensor& du, const Tensor& dh, const Tensor& d, HyperConnection&, const HyperConnection::Gradients&, const Parameter& norm, const Site&);

  float eps_;
  SharedKvAttention attention_;
  Moe moe_;
  Parameter &attention_norm_, &feed_forward_norm_;
  HyperConnection attention_hyper_, feed_forward_hyper_;
};

}  // namespace hyscale
