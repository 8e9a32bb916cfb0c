#include "models/selection_store.h"

namespace hyscale {

SelectionStore::SelectionStore(Device device, int num_slots, SelectionStorage storage, size_t reserve_bytes)
    : storage_(storage), arena_(device, "selections", reserve_bytes), slots_(static_cast<size_t>(num_slots)) {}

void SelectionStore::begin() {
  arena_.reset();
  working_ = {};
  open_slot_ = -1;
  for (Slot& s : slots_)
    if (!s.fixed) s = {};
}

Selection& SelectionStore::open(int slot, int64_t num_queries, int64_t k, Stream stream) {
  Slot& s = slots_.at(static_cast<size_t>(slot));
  HYSCALE_CHECK(!s.fixed, "slot ", slot, " holds a given selection");
  if (!s.nan_query.defined()) {
    s.nan_query = arena_.allocate_zeroed(DType::i32, {1}, stream);
    s.num_queries = num_queries;
    s.k = k;
  }
  Selection& target = storage_ == SelectionStorage::packed ? working_ : s.selection;
  if (!target.indices.defined()) target = {arena_.allocate(DType::i32, {num_queries, k}), arena_.allocate(DType::i32, {num_queries})};
  check_shape(target.indices, "selections of one micro-batch", {num_queries, k});
  open_slot_ = slot;
  return target;
}

void SelectionStore::close(int slot, int64_t num_keys, Stream stream) {
  Slot& s = slots_.at(static_cast<size_t>(slot));
  HYSCALE_CHECK(open_slot_ == slot, "slot ", slot, " is not the open one, ", open_slot_);
  if (storage_ == SelectionStorage::packed) {
    if (!s.packed.low.defined()) s.packed = {arena_.allocate(DType::u16, {s.num_queries, s.k}), arena_.allocate(DType::u16, {s.num_queries, packed_blocks(num_keys)})};
    pack_selection(working_, s.packed, stream);
  }
  s.closed = true;
}

const Selection& SelectionStore::get(int slot, Stream stream) {
  Slot& s = slots_.at(static_cast<size_t>(slot));
  if (s.fixed) return s.selection;
  HYSCALE_CHECK(s.closed, "slot ", slot, " holds no selection of this micro-batch");
  if (storage_ == SelectionStorage::int32) return s.selection;
  if (open_slot_ != slot) {
    unpack_selection(s.packed, working_, stream);
    open_slot_ = slot;
  }
  return working_;
}

void SelectionStore::fix(int slot, const Selection& selection) {
  Slot& s = slots_.at(static_cast<size_t>(slot));
  s.selection = selection;
  s.fixed = true;
}

Tensor SelectionStore::nan_query(int slot) { return slots_.at(static_cast<size_t>(slot)).nan_query; }

std::optional<SelectionStore::NanScore> SelectionStore::find_nan(Stream stream) const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& s = slots_[i];
    if (!s.nan_query.defined() || s.nan_query.device().is_meta()) continue;
    int32_t query = 0;
    copy_bytes(&query, Device{}, s.nan_query.raw(), s.nan_query.device(), sizeof query, stream);
    synchronize(s.nan_query.device(), stream);
    if (query < s.num_queries) return NanScore{static_cast<int>(i), query};
  }
  return std::nullopt;
}

}  // namespace hyscale
