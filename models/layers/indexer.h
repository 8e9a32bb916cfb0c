// The lightning indexer: scores every earlier token for a query and keeps the best; trained by the index loss alone.
//   q_j = rope(W_q c_q),  k = rope(LayerNorm(W_k u)),  w = (W_w u) J^-1/2 D^-1/2  (f32),   rope on the FIRST rope_dim numbers
//   score(t, s) = sum_j w[t, j] relu(q_j[t] . k[s])
// u and c_q are detached: nothing flows back into them. Sources: DeepSeek-V3.2; GLM-5.
#pragma once
#include "models/context.h"
#include "models/layers/mla.h"
#include "models/selection_store.h"

namespace hyscale {

struct IndexerConfig {
  int64_t hidden_size = 0, q_rank = 0, num_heads = 0, head_dim = 0, rope_dim = 0, k = 0;
  bool rope_interleaved = true;
  bool e4m3 = false;  // select by queries and keys rounded to e4m3; gradients take the rounding as the identity
};

class Indexer {
 public:
  Indexer(ParameterStore&, const std::string& prefix, const IndexerConfig&);

  struct Saved {
    Tensor u, c_q;             // the caller's
    Tensor q, weights;         // [T, J, D], f32 [T, J]
    Tensor k_raw, mean, rstd;  // [T, D], f32 [T], f32 [T]
    Tensor k;                  // [T, D]
    Tensor all_keys;           // [S, D]
  };
  // `slot` is the place of this use in the SelectionStore and in LossSums::index.
  // Projections; then the selection, unless the pass replays it: the result is in the store. Meanwhile the main
  // attention's kv [T, Dk] is gathered too and returned, [S, Dk].
  Tensor forward(Context&, Pass, int slot, const Tensor& u, const Tensor& c_q, const Tensor& kv, const Tensor& inv_freq, Saved&);
  // Index loss over the selected set; gradients of the indexer's own parameters.
  void backward(Context&, int slot, const Tensor& head_sum, const Tensor& inv_freq, const Saved&);
  // Warm-up stage: projections and gathering as in forward; then index loss over all visible keys and its backward.
  Tensor warmup_forward(Context&, const Tensor& u, const Tensor& c_q, const Tensor& kv, const Tensor& inv_freq, Saved&);
  void warmup_backward(Context&, int slot, const Tensor& inv_freq, const Tensor& main_q, const Mla::Dense&, float main_scale, const Saved&);

 private:
  void project(Context&, const Tensor& u, const Tensor& c_q, const Tensor& inv_freq, Saved&);
  Tensor select(Context&, int slot, const Tensor& kv, Saved&);
  void backward_projections(Context&, const Tensor& dq, const Tensor& dweights, const Tensor& dk, const Tensor& inv_freq, const Saved&);
  float weight_scale() const;

  IndexerConfig config_;
  Parameter &wq_b_, &wk_, &k_norm_, &k_norm_bias_, &weights_proj_;
};

}  // namespace hyscale
