// Multi-head latent attention in absorbed form: every head reads one shared row [c_kv | k_rope] per token.
//   c_q = RMSNorm(W_qa u),  q = W_qb c_q = per head [q_nope | q_rope]
//   [c | k_rope] = W_kva u,  c_kv = RMSNorm(c);  W_kvb holds per head U_h [nope, R] and T_h [v, R]
//   q~_h = [q_nope U_h | rope(q_rope)],  kv = [c_kv | rope(k_rope)],  o~_h = attention over the selected rows,
//   o_h = o~_h T_h^T,  y = W_o o.   scale = (nope + rope)^-1/2.   Source: DeepSeek-V2, V3.2; GLM-5.
#pragma once
#include "kernels/flash_topk/selection.h"
#include "models/context.h"
#include "models/parameter_store.h"

namespace hyscale {

struct MlaConfig {
  int64_t hidden_size = 0, num_heads = 0, q_rank = 0, kv_rank = 0, nope_dim = 0, rope_dim = 0, value_dim = 0;
  float latent_eps = 1e-6f;
  float rope_theta = 10000;
  bool rope_interleaved = true;
  float scale = 1;
};

class Mla {
 public:
  Mla(ParameterStore&, const std::string& prefix, const MlaConfig&);

  // The latents before their norms, q_raw and kv_raw, are of the residual's dtype.
  struct Saved {
    Tensor u;                    // [T, C], the caller's
    Tensor q_raw, q_rstd, c_q;   // [T, Rq], f32 [T], [T, Rq]
    Tensor kv_raw, kv_rstd, kv;  // [T, R + rope], f32 [T], [T, R + rope]
    Tensor q;                    // [T, H, nope + rope]
    Tensor q_absorbed;           // [T, H, R + rope]
    Tensor all_kv;               // [S, R + rope]
    Tensor o_latent, lse, o;     // [T, H, R], f32 [T, H], [T, H, v]
  };

  // c_q, q~ and kv from u. inv_freq is f32 [rope / 2] on the device.
  void project(Context&, const Tensor& u, const Tensor& inv_freq, Saved&);
  // y[T, C], of the activation's or the residual's dtype, from the selected rows of kv [S, R + rope], every token's (context_rows.h).
  void attend(Context&, const Tensor& kv, const Selection&, const Tensor& y, Saved&);
  // dy is of the activation's or the residual's dtype. du[T, C] is overwritten; head_sum f32 [T, k] is written when defined.
  void backward(Context&, const Tensor& dy, const Selection&, const Tensor& inv_freq, const Tensor& head_sum, const Tensor& du, const Saved&);

  // Dense attention over all visible tokens, forward only (warm-up stage). Turns saved.q by its rope and leaves the keys
  // and log sums for the index loss.
  struct Dense {
    Tensor keys, lse;  // [S, H, nope + rope], f32 [T, H]
  };
  void attend_dense(Context&, const Tensor& kv, const Tensor& inv_freq, const Tensor& y, Saved&, Dense&);
  float scale() const { return config_.scale; }
  int64_t value_width() const { return config_.kv_rank; }  // of a kv row, in absorbed form

 private:
  Tensor up_keys(const Tensor& kv_b) const;    // U of every head: [H, nope, R]
  Tensor up_values(const Tensor& kv_b) const;  // T of every head: [H, v, R]
  void rotate(Context&, const Tensor& x_thd, const Tensor& inv_freq, bool inverse) const;
  void backward_latents(Context&, const Tensor& dq, const Tensor& dkv, const Tensor& inv_freq, const Tensor& du, const Saved&);

  MlaConfig config_;
  Parameter &q_a_, &q_norm_, &q_b_, &kv_a_, &kv_norm_, &kv_b_, &o_;
};

}  // namespace hyscale
