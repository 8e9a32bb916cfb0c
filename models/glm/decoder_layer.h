// One GLM decoder layer:  x1 = x + Attention(RMSNorm(x)),  y = x1 + FFN(RMSNorm(x1)).
// Attention is MLA over the selection of this layer's indexer, or of an earlier layer's (IndexShare). x, x1, y and their gradients
// are of the residual's dtype: the products that end attention and FFN write it, and what backward multiplies is narrowed.
#pragma once
#include <optional>

#include "models/glm/glm_config.h"
#include "models/layers/indexer.h"
#include "models/layers/mla.h"
#include "models/layers/moe.h"

namespace hyscale {

class GlmLayer {
 public:
  // owns_indexer: this layer makes its selection, else it reads another's. dense: MLP instead of experts.
  GlmLayer(ParameterStore&, const std::string& prefix, const GlmConfig&, bool owns_indexer, bool dense);

  struct Saved {
    Tensor x, rstd1, u;   // [T, C] (the caller's), f32 [T], [T, C]
    Mla::Saved attention;
    Indexer::Saved indexer;
    Tensor x1, rstd2, v;  // [T, C], f32 [T], [T, C]
    Mlp::Saved mlp;
    Moe::Saved moe;
  };
  // slot: where the selection of this use of the layer lies in the SelectionStore.
  void forward(Context&, Pass, int slot, const Tensor& x, const Tensor& y, const Tensor& inv_freq, Saved&);
  // Turns dy into dx in place.
  void backward(Context&, int slot, const Tensor& dy, const Tensor& inv_freq, const Saved&);
  // Dense attention and the indexer's own training; y is computed, nothing is kept.
  void warmup(Context&, int slot, const Tensor& x, const Tensor& y, const Tensor& inv_freq);

  Moe* moe() { return moe_ ? &*moe_ : nullptr; }

 private:
  void sample_selection(Context&, int slot, const Tensor& kv, const Saved&);
  void attention_input(Context&, const Tensor& x, Saved&);
  void feed_forward(Context&, Pass, const Tensor& attention_out, const Tensor& y, Saved&);

  float eps_;
  Parameter &input_norm_, &post_norm_;
  Mla attention_;
  std::optional<Indexer> indexer_;
  int64_t k_;
  std::optional<Mlp> mlp_;
  std::optional<Moe> moe_;
};

}  // namespace hyscale
