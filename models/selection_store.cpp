#include "models/selection_store.h"

namespace hyscale {

SelectionStore::SelectionStore(Device device, int num_slots, size_t reserve_bytes)
    : arena_(device, "selections", reserve_bytes), slots_(static_cast<size_t>(num_slots)) {}

void SelectionStore::begin() {
  arena_.reset();
  for (Slot& s : slots_)
    if (!s.fixed) s = {};
}

Selection& SelectionStore::allocate(int slot, int64_t num_queries, int64_t k, Stream stream) {
  Slot& s = slots_.at(static_cast<size_t>(slot));
  if (!s.selection.indices.defined()) {
    s.selection = {arena_.allocate(DType::i32, {num_queries, k}), arena_.allocate(DType::i32, {num_queries})};
    s.nan_query = arena_.allocate_zeroed(DType::i32, {1}, stream);
    s.num_queries = num_queries;
  }
  return s.selection;
}

const Selection& SelectionStore::get(int slot) const {
  const Slot& s = slots_.at(static_cast<size_t>(slot));
  HYSCALE_CHECK(s.selection.indices.defined(), "slot ", slot, " holds no selection of this micro-batch");
  return s.selection;
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
