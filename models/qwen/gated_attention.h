// Grouped-query attention over the blocks that an indexer selects, with an output gate of every number:
//   q, gate = W_q x (for each head: D rows of q, then D of its gate),  k = W_k x,  v = W_v x
//   q and k: zero-centred RMSNorm of each head, then rope on the first numbers;   y = W_o (attention(q, k, v) sigmoid(gate))
// Source: Qwen3.8 (QSA), report section 2.1.2.
#pragma once
#include "kernels/block_attention/block_attention.h"
#include "models/qwen/block_indexer.h"

namespace hyscale {

class GatedAttention {
 public:
  GatedAttention(ParameterStore&, const std::string& prefix, const GatedAttentionConfig&);

  struct Saved {
    Tensor x;                      // [T, C], the caller's
    Tensor q_gate, q_rstd, q;      // [T, H, 2 D], f32 [1, T H], [T, H, D]
    Tensor k_raw, k_rstd, k, v;    // [T, G, D], f32 [1, T G], [T, G, D] each
    Tensor all_k, all_v;           // [S, G, D]: of the whole sequence
    Tensor o, lse;                 // [T, H, D], f32 [T, H]
    BlockIndexer::Saved indexer;
  };
  void forward(Context&, Pass, int slot, const Tensor& x, const Tensor& y, const Tensor& inv_freq, Saved&);
  // dx[T, C] is overwritten. The indexer's parameters get the gradient of the index loss.
  void backward(Context&, int slot, const Tensor& dy, const Tensor& inv_freq, const Tensor& dx, const Saved&);
  // Warm-up stage: attention over every block that a query sees. The indexer's parameters get the gradient of the index loss over them.
  void warmup(Context&, int slot, const Tensor& x, const Tensor& y, const Tensor& inv_freq);

 private:
  const CompressedEntries& blocks(const Context&) const;
  Tensor gates(const Tensor& q_gate) const { return q_gate.slice(2, config_.head_dim, 2 * config_.head_dim); }
  Tensor query_rows(const Tensor& q_gate) const;  // of every head, [T H, D], strided
  void rotate(Context&, const Tensor& x_thd, const Tensor& inv_freq, bool inverse) const;
  float scale() const;
  // Calls function(first, last, row) for runs of own tokens [first, last) that lie side by side in the sequence, from token `row` on.
  template <typename Function>
  void for_each_run(const Context&, Function) const;
  AttendedBlocks attended(Context&, int slot, int64_t first, int64_t last, int64_t row) const;
  void project(Context&, const Tensor& x, const Tensor& inv_freq, Saved&);
  void output(Context&, const Tensor& y, const Saved&);
  void backward_keys(Context&, const Tensor& dk, const Tensor& dv, const Tensor& inv_freq, const Tensor& dx, const Saved&);

  GatedAttentionConfig config_;
  Parameter &q_, &k_, &v_, &o_, &q_norm_, &k_norm_;
  BlockIndexer indexer_;
};

}  // namespace hyscale
