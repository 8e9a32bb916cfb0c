// N-gram memory in front of a layer: rows of a hashed table for the last two and three tokens, mixed into the residual streams.
//   e = rows of all heads side by side,   key = RMSNorm(W_k e),   value = W_v e,   query = RMSNorm(R)   (norms of each stream)
//   m = gate(key, query) value (kernels/ngram_gate),   R' = R + m + SiLU(conv(RMSNorm(m))),   conv over taps `dilation` tokens apart
// Source: Qwen3.8, n-gram embedding.
#pragma once
#include "models/context.h"
#include "models/parameter_store.h"
#include "models/qwen/qwen_config.h"

namespace hyscale {

class NgramMemory {
 public:
  // number: of this memory among the model's. The table is cut by rows into ple_embedding.ngram_embedding.shard_N.weight.
  NgramMemory(ParameterStore&, const std::string& prefix, const NgramConfig&, const GatedResidualConfig& streams, int number);

  struct Saved {
    Tensor streams;                     // [T, n, C], the caller's
    Tensor rows, e;                     // i32 [T, heads], [T, embed]
    Tensor keys_raw, keys_rstd, keys;   // [T, n, C], f32 [n, T], [T, n, C]
    Tensor queries_rstd, queries;       // f32 [n, T], [T, n, C]
    Tensor values, scores;              // [T, C], f32 [T, n]
    Tensor m, m_rstd, m_normed;         // [T, n, C], f32 [n, T], [X, n C] of the reach
  };
  void forward(Context&, const Tensor& streams, const Tensor& out, Saved&);
  // Turns the gradient of out into that of streams in place.
  void backward(Context&, const Tensor& d, const Saved&);

 private:
  void hash(Context&, const Tensor& rows) const;
  int64_t row_width() const { return config_.embed_dim / hash_.heads(); }
  Tensor taps(const Tensor& weight) const { return weight.view({weight.size(0), weight.size(2)}); }

  NgramConfig config_;
  GatedResidualConfig streams_;
  NgramTable hash_;
  Parameter &table_, &key_, &value_, &norm_key_, &norm_query_, &norm_conv_, &conv_;
};

}  // namespace hyscale
