// Selections of one micro-batch: what selection replay stores. A selecting layer writes its slot in the forward pass;
// recompute, backward and the layers that share its indexer read it.
#pragma once
#include <optional>
#include <vector>

#include "core/arena.h"
#include "kernels/flash_topk/selection.h"

namespace hyscale {

class SelectionStore {
 public:
  SelectionStore(Device, int num_slots, size_t reserve_bytes = 0);

  // Starts a micro-batch: the slots are empty again, counters go on.
  void begin();

  // Memory for a slot's selection, once per micro-batch (a second call returns the same).
  Selection& allocate(int slot, int64_t num_queries, int64_t k, Stream);
  const Selection& get(int slot) const;

  // A given selection, read by the forward pass too: the selector is never called for this slot. Kept until cleared.
  void fix(int slot, const Selection&);
  bool is_fixed(int slot) const { return slots_[static_cast<size_t>(slot)].fixed; }

  // i32 [1] of a slot: the lowest query that met a NaN score, num_queries when none did.
  Tensor nan_query(int slot);
  struct NanScore {
    int slot;
    int64_t query;
  };
  // Synchronises. The first slot of this micro-batch with a NaN score.
  std::optional<NanScore> find_nan(Stream) const;

  void count_selector_call() { ++selector_calls_; }
  int64_t selector_calls() const { return selector_calls_; }  // since construction
  size_t peak_bytes() const { return arena_.peak_bytes(); }
  int num_slots() const { return static_cast<int>(slots_.size()); }

 private:
  struct Slot {
    Selection selection;
    Tensor nan_query;
    int64_t num_queries = 0;
    bool fixed = false;
  };
  Arena arena_;
  std::vector<Slot> slots_;
  int64_t selector_calls_ = 0;
};

}  // namespace hyscale
