// What the selecting layers of all families do with keys, however these are made: choose the best of them while they travel,
// and teach their scores the attention that the chosen ones got.
#pragma once
#include "models/layers/context_rows.h"
#include "models/selection_store.h"

namespace hyscale {

// An indexer's queries [T, J, D] and weights f32 [T, J] (absent: ones); query t sees the keys begin[t] .. end[t] of the whole sequence.
// e4m3: queries and keys are rounded to it, a scale per row.
struct KeyScorer {
  Tensor q, weights, begin, end;
  bool e4m3 = false;
};

// FlashTopK into the store's slot over the keys of all ranks, which arrive together with kv (or without them): as
// gather_context_rows, whose rows are returned.
ContextRows select_keys(Context&, int slot, int64_t k, const KeyScorer&, const Tensor& kv, const Tensor& keys, const RowShards* shards = nullptr);

// Index loss over the slot's selection, whose teacher is head_sum f32 [T, k]; adds to sums.index. dq and dweights are
// overwritten, dkeys f32 [all keys, D] is accumulated into.
void index_loss_of_selection(Context&, int slot, const Tensor& q, const Tensor& weights, const Tensor& keys, const Tensor& head_sum, const Tensor& dq, const Tensor& dweights,
                             const Tensor& dkeys);

}  // namespace hyscale
