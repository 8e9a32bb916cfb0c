#include "models/selection_store.h"

namespace hyscale {

SelectionStore::SelectionStore(Device device, int num_slots, SelectionStorage storage, size_t reserve_bytes)
    : storage_(storage), device_(device), arena_(device, "selections", reserve_bytes), transfer_(device), staging_{Staging(device), Staging(device)},
      slots_(static_cast<size_t>(num_slots)) {}

void SelectionStore::begin() {
  arena_.reset();
  working_ = {};
  open_slot_ = -1;
  for (Staging& t : staging_) t.slot = -1, t.packed = {};
  for (Slot& s : slots_) {
    if (s.fixed) continue;
    std::unique_ptr<PinnedBuffer> host = std::move(s.host);  // kept from step to step
    s = {};
    s.host = std::move(host);
  }
}

void SelectionStore::shape_staging(Staging& t, const Slot& s) {
  const Shape low{s.num_queries, s.k}, ends{s.num_queries, s.blocks};
  if (!t.packed.low.defined()) t.packed = {arena_.allocate(DType::u16, low), arena_.allocate(DType::u16, ends)};
  check_shape(t.packed.low, "selections of one micro-batch", low);
  check_shape(t.packed.block_ends, "key blocks of one micro-batch", ends);
}

// On the transfer stream.
void SelectionStore::move(Slot& s, Staging& t, bool to_host) {
  if (device_.is_meta()) return;
  char* host = static_cast<char*>(s.host->data());
  for (const Tensor* part : {&t.packed.low, &t.packed.block_ends}) {
    if (to_host) copy_bytes(host, Device{}, part->raw(), device_, part->bytes(), transfer_.get());
    else copy_bytes(part->raw(), device_, host, Device{}, part->bytes(), transfer_.get());
    host += part->bytes();
  }
  t.moved.record(transfer_.get());
}

void SelectionStore::leave(int slot, Stream compute) {
  Slot& s = slots_.at(static_cast<size_t>(slot));
  Staging& t = staging(slot);
  shape_staging(t, s);
  if (!s.host) s.host = std::make_unique<PinnedBuffer>();
  if (!device_.is_meta()) s.host->reserve(t.packed.low.bytes() + t.packed.block_ends.bytes());
  t.moved.hold(compute);  // what was here has left
  pack_selection(working_, t.packed, compute);
  t.slot = slot;
  t.used.record(compute);
  t.used.hold(transfer_.get());
  move(s, t, true);
}

void SelectionStore::fetch(int slot) {
  Slot& s = slots_.at(static_cast<size_t>(slot));
  Staging& t = staging(slot);
  if (t.slot == slot || !s.closed) return;
  shape_staging(t, s);
  t.slot = slot;
  t.used.hold(transfer_.get());  // what was here has been used; copies are in order
  move(s, t, false);
}

Selection& SelectionStore::open(int slot, int64_t num_queries, int64_t k, Stream stream) {
  Slot& s = slots_.at(static_cast<size_t>(slot));
  HYSCALE_CHECK(!s.fixed, "slot ", slot, " holds a given selection");
  if (!s.nan_query.defined()) {
    s.nan_query = arena_.allocate_zeroed(DType::i32, {1}, stream);
    s.num_queries = num_queries;
    s.k = k;
  }
  Selection& target = storage_ == SelectionStorage::int32 ? s.selection : working_;
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
  } else if (storage_ == SelectionStorage::host) {
    s.blocks = packed_blocks(num_keys);
    leave(slot, stream);
  }
  s.closed = true;
}

const Selection& SelectionStore::get(int slot, Stream stream) {
  Slot& s = slots_.at(static_cast<size_t>(slot));
  if (s.fixed) return s.selection;
  HYSCALE_CHECK(s.closed, "slot ", slot, " holds no selection of this micro-batch");
  if (storage_ == SelectionStorage::int32) return s.selection;
  if (open_slot_ == slot) return working_;
  open_slot_ = slot;
  if (storage_ == SelectionStorage::packed) {
    unpack_selection(s.packed, working_, stream);
    return working_;
  }
  fetch(slot);
  Staging& t = staging(slot);
  t.moved.hold(stream);
  unpack_selection(t.packed, working_, stream);
  t.used.record(stream);
  if (slot > 0 && !slots_[static_cast<size_t>(slot - 1)].fixed) fetch(slot - 1);  // the one that backward will ask for
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
