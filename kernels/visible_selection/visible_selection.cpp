#include "kernels/visible_selection/visible_selection.h"

#include <algorithm>
#include <numeric>

#include "kernels/common/op.h"

namespace hyscale {
namespace {

void visible_selection_ref(const VisibleSelection& s) {
  const int64_t k = s.selection.indices.size(1);
  for (int64_t t = 0; t < s.begin.size(0); ++t) {
    const int32_t first = s.begin.i32()[t], visible = std::max(0, s.end.i32()[t] - first);
    HYSCALE_CHECK(visible <= k, "query ", t, " sees ", visible, " keys; there is room for ", k);
    int32_t* out = s.selection.indices.i32() + t * k;
    std::iota(out, out + visible, first);
    std::fill(out + visible, out + k, -1);
    s.selection.counts.i32()[t] = visible;
  }
}

}  // namespace

void visible_selection(const VisibleSelection& s) {
  check_tensor(s.begin, "begin", DType::i32, {-1});
  check_tensor(s.end, "end", DType::i32, s.begin.shape());
  check_tensor(s.selection.indices, "indices", DType::i32, {s.begin.size(0), -1});
  check_tensor(s.selection.counts, "counts", DType::i32, s.begin.shape());
  HYSCALE_DISPATCH("visible_selection", s.begin.device(), visible_selection_ref(s), unsupported_device("visible_selection", s.begin.device()));
}

}  // namespace hyscale
