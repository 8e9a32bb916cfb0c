// How well selections serve, measured on a few queries of a rank's sequence: what a loss curve does not show.
//   recall      mass of dense attention that lies in the selection, mean over heads: exp(lse over it - lse over all visible keys)
//   neighbours  |S(t) and S(t + 1)| / k, for neighbouring queries of a document
//   below       |S(t) and S'(t)| / k, with S' of the selecting layer observed before
//   tied        share of queries whose k-th and (k + 1)-th best scores are equal: there the lower index decides
// Only queries that see more than k keys are sampled; for others the selection is everything.
#pragma once
#include <span>
#include <vector>

#include "models/context.h"

namespace hyscale {

class SelectionHealth {
 public:
  // queries: sampled per rank, evenly over those that have a choice.
  explicit SelectionHealth(int num_slots, int64_t queries = 8);

  // Forgets sums and sample: a step begins.
  void begin();

  struct Layer {
    int slot = 0;
    int64_t k = 0;
    Tensor q, kv;                            // attention: [T, H, Dk], [S, Dk]
    int64_t value_width = 0;                 // the first numbers of a kv row that are its value
    float scale = 1;
    Tensor index_q, index_weights, index_keys;  // indexer: [T, J, D], f32 [T, J], [S, D]
    Tensor key_begin, key_end;               // i32 [T]: the keys that a query sees; the same in all layers
  };
  // Layers in order, all of one sequence. Synchronises. On CUDA k is at most 4095: FlashTopK looks for one key more. Scratch memory does not depend on what is sampled, so `meta` counts it.
  void observe(Context&, const Layer&);

  // f64, five per slot: sums over sampled queries, and their number. Ranks add theirs.
  std::span<double> sums() { return sums_; }

  struct Means {
    int64_t queries = 0;  // 0: none has a choice, and the means are NaN
    double recall = 0, neighbours = 0, below = 0, tied = 0;  // below is NaN in the first selecting layer
  };
  std::vector<Means> means() const;

 private:
  struct Query {
    int64_t at;                // local token t; t + 1 is its neighbour
    int64_t key_begin, key_end, neighbour_end;  // visible keys of t; of t + 1 to another end
  };
  using Keys = std::vector<int32_t>;  // ascending
  struct Selected {
    std::vector<Keys> of_query, of_neighbour;
    int64_t tied = 0;
  };
  void draw(Context&, const Layer&);
  Selected select(Context&, const Layer&) const;
  double recall(Context&, const Layer&, const Query&, const Keys& selected) const;

  int64_t num_queries_;
  bool drawn_ = false;
  std::vector<Query> queries_;
  std::vector<Keys> previous_;  // of the layer observed before
  std::vector<double> sums_;
};

}  // namespace hyscale
