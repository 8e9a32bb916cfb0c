// The indexer over blocks of keys: scores every complete block that a query sees and keeps the best; trained by the index loss alone.
//   q_j = rope(RMSNorm(W_q,j x)),   key of a block = rope(RMSNorm(mean of W_k x over its tokens), at its first position)
//   score(t, e) = D^-1/2 sum_j relu(q_j[t] . key[e]),   rope on the FIRST numbers, norms zero-centred
// x is detached: nothing flows back into it. Source: Qwen3.8 (QSA), report equations 12 to 16.
#pragma once
#include "models/context.h"
#include "models/parameter_store.h"
#include "models/qwen/qwen_config.h"
#include "models/selection_store.h"

namespace hyscale {

class BlockIndexer {
 public:
  // Hugging Face names: prefix + index_qk_proj.weight [(J + 1) D, C], queries first; q_layernorm.weight, k_layernorm.weight [D].
  BlockIndexer(ParameterStore&, const std::string& prefix, const BlockIndexerConfig&);

  struct Saved {
    Tensor x;                     // [T, C], the caller's
    Tensor q_raw, q_rstd, q;      // [T, J, D], f32 [1, T J], [T, J, D] times D^-1/2
    Tensor pooled, k_rstd, keys;  // [E, D], f32 [1, E], [E, D]
    Tensor all_keys;              // [blocks of the whole sequence, D]
  };
  // The selection is in the store's `slot` afterwards, unless the pass replays one. Nothing is computed that is not needed.
  void forward(Context&, Pass, int slot, const Tensor& x, const CompressedEntries& blocks, const Tensor& inv_freq, Saved&);
  // Index loss over the selected blocks; gradients of the indexer's own parameters. block_mass f32 [T, k].
  void backward(Context&, int slot, const Tensor& block_mass, const CompressedEntries& blocks, const Tensor& inv_freq, const Saved&);

  // Warm-up stage: queries and keys without a selection; then index loss and gradients over every block that a query sees.
  struct Teacher {
    Tensor q, k, lse;  // of main attention: [T, H, D], [S, G, D], f32 [T, H]
    float scale;
  };
  void warmup_forward(Context&, const Tensor& x, const CompressedEntries& blocks, const Tensor& inv_freq, Saved&);
  void warmup_backward(Context&, int slot, const Teacher&, const CompressedEntries& blocks, const Tensor& inv_freq, const Saved&);

 private:
  // dq [T, J, D] and dkeys f32 [all blocks, D] into the gradients of the indexer's own parameters; both are scratch of this call.
  void backward_projections(Context&, const Tensor& dq, const Tensor& dkeys, const CompressedEntries& blocks, const Tensor& inv_freq, const Saved&);
  void project(Context&, const Tensor& x, const CompressedEntries& blocks, const Tensor& inv_freq, Saved&);
  void rotate(Context&, const Tensor& x_thd, const Tensor& positions, const Tensor& inv_freq, bool inverse) const;
  Tensor query_rows(const Tensor& w) const { return w.slice(0, 0, config_.num_heads * config_.head_dim); }
  Tensor key_rows(const Tensor& w) const { return w.slice(0, config_.num_heads * config_.head_dim, w.size(0)); }
  float score_scale() const;

  BlockIndexerConfig config_;
  Parameter &qk_, &q_norm_, &k_norm_;
};

}  // namespace hyscale
