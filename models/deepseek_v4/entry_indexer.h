// The indexer over compressed entries (CSA): scores the entries that a query sees and keeps the best; trained by the index
// loss alone. Queries come from the attention's query latent, keys from a compressor of its own.
//   q_j = rope(W_q c_q),  w = (W_w u) J^-1/2 D^-1/2  (f32),  score(t, e) = sum_j w[t, j] relu(q_j[t] . k[e])
// rope on the LAST numbers. u and c_q are detached. Source: DeepSeek-V4 technical report, section 2.3.1.
#pragma once
#include "models/layers/context_rows.h"
#include "models/layers/token_compressor.h"
#include "models/selection_store.h"

namespace hyscale {

struct EntryIndexerConfig {
  int64_t hidden_size = 0, q_rank = 0, num_heads = 0, k = 0;
  CompressorConfig keys;  // dims: of a head
};

class EntryIndexer {
 public:
  EntryIndexer(ParameterStore&, const std::string& prefix, const EntryIndexerConfig&);

  struct Saved {
    Tensor u, c_q;      // the caller's
    Tensor q, weights;  // [T, J, D], f32 [T, J]
    Tensor keys;        // [E, D] the own entries'
    Tensor all_keys;    // those of the whole sequence
    TokenCompressor::Saved compressor;
  };
  // The selection is in the store's `slot` afterwards, unless the pass replays one. Nothing is computed that is not needed.
  // u [T, C]; reach [X, C]: its rows of the reach. Meanwhile the attention's own entries [E, Dk] are gathered too and returned.
  Tensor forward(Context&, Pass, int slot, const Tensor& u, const Tensor& reach, const Tensor& c_q, const Tensor& own_entries, const CompressedEntries&, const Tensor& inv_freq,
                 Saved&);
  // Index loss over the selected entries; gradients of the indexer's own parameters. head_sum f32 [T, k].
  void backward(Context&, int slot, const Tensor& head_sum, const CompressedEntries&, const Tensor& inv_freq, const Saved&);

 private:
  void project(Context&, const Tensor& u, const Tensor& reach, const Tensor& c_q, const CompressedEntries&, const Tensor& inv_freq, Saved&);
  Tensor select(Context&, int slot, const Tensor& own_entries, const CompressedEntries&, Saved&);
  Tensor turned(const Tensor& q) const;
  float weight_scale() const;

  EntryIndexerConfig config_;
  Parameter &wq_b_, &weights_proj_;
  TokenCompressor compressor_;
};

}  // namespace hyscale
