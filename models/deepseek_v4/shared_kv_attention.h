// DeepSeek-V4's attention: every head reads one shared row per key, which is key and value at once. Keys are the last tokens
// of the document (a sliding window), compressed entries (the selected ones, all, or none), and a sink.
//   c_q = RMSNorm(W_qa u),  q_h = rope(RMS(W_qb,h c_q))  (no weight);  kv = rope(RMSNorm(W_kv u))
//   rows = [entries | tokens],  O = sparse attention with sink,  O's rope numbers are turned back by the query's position
//   per group g of heads: o'_g = W_oa,g [O_h of the group];  y = W_ob [o'_1 ... o'_G].   scale = head_dim^-1/2
// rope turns the LAST numbers of a head. Source: DeepSeek-V4 technical report, section 2.3.3.
#pragma once
#include <optional>

#include "models/deepseek_v4/entry_indexer.h"
#include "models/deepseek_v4/v4_config.h"

namespace hyscale {

class SharedKvAttention {
 public:
  SharedKvAttention(ParameterStore&, const std::string& prefix, const V4Config&, Compression, int64_t ratio);

  struct Saved {
    Tensor u, reach;                    // [T, C], the caller's; [X, C] (models/layers/token_reach.h)
    Tensor q_latent, q_rstd, c_q;       // [T, R], f32 [T], [T, R]
    Tensor q_raw, q_head_rstd, q;       // [T, H, D], f32 [T H], [T, H, D]
    Tensor kv_raw, kv_rstd, kv;         // [X, D], f32 [X], [X, D]
    Tensor own_entries;                 // [E, D]
    Tensor rows;                        // [entries of the whole sequence + X, D]
    Tensor o, lse, grouped;             // [T, H, D], f32 [T, H], [T, G, r]
    TokenCompressor::Saved compressor;
    EntryIndexer::Saved indexer;
  };
  // slot: of the selection, for layers that select. y [T, C] is overwritten. inv_freq: this layer's.
  void forward(Context&, Pass, int slot, const Tensor& u, const Tensor& y, const Tensor& inv_freq, Saved&);
  // du [T, C] is overwritten.
  void backward(Context&, int slot, const Tensor& dy, const Tensor& du, const Tensor& inv_freq, const Saved&);

  Compression compression() const { return compression_; }

 private:
  const CompressedEntries& entries(const Context&) const;
  int64_t num_entries(const Context&) const;
  Tensor turned(const Tensor& rows) const;  // the part of rows that rope turns, with one head: [n, H, rope]
  void project(Context&, const Tensor& u, const Tensor& inv_freq, Saved&);
  void join_rows(Context&, Pass, int slot, const Tensor& inv_freq, Saved&);
  Tensor unturned_output(Context&, const Tensor& inv_freq, const Saved&) const;
  int64_t most_rows(const Context&) const;
  // Calls function(first, last, rows) for runs of queries whose attended rows fit a bounded list.
  template <typename Function>
  void for_each_run(Context&, int slot, Function) const;
  void backward_projections(Context&, const Tensor& dq, const Tensor& dkv, const Tensor& inv_freq, const Tensor& du, const Saved&);

  int64_t heads_, dims_, rope_dim_, groups_, group_rank_, window_, k_, ratio_;
  float eps_, scale_;
  Compression compression_;
  Parameter &wq_a_, &q_norm_, &wq_b_, &wkv_, &kv_norm_, &sink_, &wo_a_, &wo_b_;
  std::optional<TokenCompressor> compressor_;
  std::optional<EntryIndexer> indexer_;
};

}  // namespace hyscale
