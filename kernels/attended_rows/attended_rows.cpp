#include "kernels/attended_rows/attended_rows.h"

#include <algorithm>

#include "kernels/common/op.h"

namespace hyscale {

void attended_rows_cuda(const AttendedRows&);

namespace {

void attended_rows_ref(const AttendedRows& a) {
  const int64_t queries = a.rows.indices.size(0), width = a.rows.indices.size(1);
#pragma omp parallel for
  for (int64_t t = 0; t < queries; ++t) {
    int32_t* out = a.rows.indices.i32() + t * width;
    int64_t n = 0;
    const auto put = [&](int64_t row) {
      HYSCALE_CHECK(n < width, "query ", t, " attends to more than ", width, " rows");
      out[n++] = static_cast<int32_t>(row);
    };
    if (a.chosen.indices.defined())
      for (int64_t j = 0; j < a.chosen.counts.i32()[t]; ++j) put(a.chosen.indices.i32()[t * a.chosen.indices.size(1) + j]);
    else if (a.entry_begin.defined())
      for (int64_t e = a.entry_begin.i32()[t]; e < a.entry_end.i32()[t]; ++e) put(e);
    const int64_t last = a.key_end.i32()[t];
    for (int64_t s = std::max<int64_t>(a.key_begin.i32()[t], last - a.window); s < last; ++s) put(a.first_token_row + s);
    a.rows.counts.i32()[t] = static_cast<int32_t>(n);
    std::fill(out + n, out + width, -1);
  }
}

}  // namespace

void attended_rows(const AttendedRows& a) {
  check_tensor(a.rows.indices, "rows", DType::i32, {-1, -1});
  const int64_t queries = a.rows.indices.size(0);
  check_tensor(a.rows.counts, "counts", DType::i32, {queries});
  for (const Tensor* bound : {&a.key_begin, &a.key_end}) check_tensor(*bound, "bounds of tokens", DType::i32, {queries});
  if (a.chosen.indices.defined()) {
    check_tensor(a.chosen.indices, "chosen entries", DType::i32, {queries, -1});
    HYSCALE_CHECK(a.chosen.indices.size(1) + a.window <= a.rows.indices.size(1), a.chosen.indices.size(1), " entries and a window of ", a.window, " in ",
                  a.rows.indices.size(1), " slots");
    HYSCALE_CHECK(!a.entry_begin.defined(), "entries are chosen, or all that are visible");
  } else if (a.entry_begin.defined()) {
    for (const Tensor* bound : {&a.entry_begin, &a.entry_end}) check_tensor(*bound, "bounds of entries", DType::i32, {queries});
  }
  HYSCALE_CHECK(a.window >= 1 && a.first_token_row >= 0, "window ", a.window, ", first row of tokens ", a.first_token_row);
  HYSCALE_DISPATCH("attended_rows", a.rows.indices.device(), attended_rows_ref(a), attended_rows_cuda(a));
}

}  // namespace hyscale
