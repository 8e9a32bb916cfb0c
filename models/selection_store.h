// Selections of one micro-batch: what selection replay stores. A selecting layer writes its slot in the forward pass;
// recompute, backward and the layers that share its indexer read it.
//
// Stored as int32, or packed (kernels/selection_pack: half the bytes). Packed slots are opened one at a time into a working
// selection: what get() and open() return is valid until another slot is opened.
#pragma once
#include <optional>
#include <vector>

#include "core/arena.h"
#include "kernels/flash_topk/selection.h"
#include "kernels/selection_pack/selection_pack.h"

namespace hyscale {

enum class SelectionStorage : uint8_t { int32, packed };

class SelectionStore {
 public:
  SelectionStore(Device, int num_slots, SelectionStorage = SelectionStorage::int32, size_t reserve_bytes = 0);

  // Starts a micro-batch: the slots are empty again, counters go on.
  void begin();

  // Where a slot's selection is to be written; close() keeps it. Key indices are below num_keys.
  Selection& open(int slot, int64_t num_queries, int64_t k, Stream);
  void close(int slot, int64_t num_keys, Stream);
  const Selection& get(int slot, Stream);

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
    Selection selection;      // int32 storage, or given
    PackedSelection packed;
    Tensor nan_query;
    int64_t num_queries = 0, k = 0;
    bool fixed = false, closed = false;
  };
  SelectionStorage storage_;
  Arena arena_;
  std::vector<Slot> slots_;
  Selection working_;  // packed storage: of the slot that is open
  int open_slot_ = -1;
  int64_t selector_calls_ = 0;
};

}  // namespace hyscale
