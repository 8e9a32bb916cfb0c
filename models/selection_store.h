// Selections of one micro-batch: what selection replay stores. A selecting layer writes its slot in the forward pass;
// recompute, backward and the layers that share its indexer read it.
//
// Stored as int32; packed (kernels/selection_pack: half the bytes); or packed in pinned host memory, where the device holds two
// packed slots on their way: one leaves while the next is made, and in backward, which walks the slots down, the next one
// arrives while the present one is used. Packed slots are opened one at a time into a working selection: what get() and open()
// return is valid until another slot is opened.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "core/arena.h"
#include "core/stream.h"
#include "kernels/flash_topk/selection.h"
#include "kernels/selection_pack/selection_pack.h"

namespace hyscale {

enum class SelectionStorage : uint8_t { int32, packed, host };

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
    PackedSelection packed;   // packed storage: on the device
    std::unique_ptr<PinnedBuffer> host;  // host storage: low parts, then block ends
    int64_t blocks = 0;
    Tensor nan_query;
    int64_t num_queries = 0, k = 0;
    bool fixed = false, closed = false;
  };
  // A packed slot on the device that comes from the host or goes there.
  struct Staging {
    explicit Staging(Device d) : moved(d), used(d) {}
    int slot = -1;
    PackedSelection packed;
    Event moved, used;  // the last copy, and the last work on the compute stream that touched it
  };
  Staging& staging(int slot) { return staging_[static_cast<size_t>(slot) % 2]; }
  void shape_staging(Staging&, const Slot&);
  void leave(int slot, Stream compute);  // packs the working selection and sends it to the host
  void fetch(int slot);                  // starts to bring a slot back, unless it is here
  void move(Slot&, Staging&, bool to_host);

  SelectionStorage storage_;
  Device device_;
  Arena arena_;
  OwnedStream transfer_;
  std::array<Staging, 2> staging_;
  std::vector<Slot> slots_;
  Selection working_;  // packed storage: of the slot that is open
  int open_slot_ = -1;
  int64_t selector_calls_ = 0;
};

}  // namespace hyscale
