// The selection that leaves nothing out: every key that a query sees, as a sparse op takes it.
//   indices[t, j] = begin[t] + j for j < counts[t] = end[t] - begin[t], -1 beyond
// Its size is queries times keys, so a caller takes few queries at a time. Runs on the CPU and on meta.
#pragma once
#include "core/tensor.h"
#include "kernels/flash_topk/selection.h"

namespace hyscale {

struct VisibleSelection {
  Tensor begin, end;    // i32 [T]: visible keys of each query
  Selection selection;  // [T, k], k at least the most keys of a query; overwritten
};
void visible_selection(const VisibleSelection&);

}  // namespace hyscale
