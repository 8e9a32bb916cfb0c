#include "kernels/attended_rows/attended_rows.h"
#include "kernels/common/cuda.cuh"

namespace hyscale {
namespace {

constexpr int kThreads = 128;

struct Arguments {
  const int32_t *chosen, *chosen_counts, *entry_begin, *entry_end, *key_begin, *key_end;
  int32_t *rows, *counts;
  int64_t first_token_row;
  int width, chosen_width, window;
};

// One block per query.
__global__ void attended_rows_kernel(const Arguments a) {
  const int64_t t = blockIdx.x;
  const int first_entry = a.entry_begin ? a.entry_begin[t] : 0;
  const int entries = a.chosen ? a.chosen_counts[t] : a.entry_begin ? a.entry_end[t] - first_entry : 0;
  const int last = a.key_end[t], first = max(a.key_begin[t], last - a.window);
  const int count = entries + last - first;
  int32_t* to = a.rows + t * a.width;
  for (int i = static_cast<int>(threadIdx.x); i < a.width; i += kThreads) {
    int32_t row = -1;
    if (i < entries) row = a.chosen ? a.chosen[t * a.chosen_width + i] : first_entry + i;
    else if (i < count) row = static_cast<int32_t>(a.first_token_row + first + (i - entries));
    to[i] = row;
  }
  if (threadIdx.x == 0) a.counts[t] = min(count, a.width);
}

}  // namespace

void attended_rows_cuda(const AttendedRows& a) {
  const int64_t queries = a.rows.indices.size(0);
  if (queries == 0) return;
  const auto address = [](const Tensor& t) { return t.defined() ? t.i32() : nullptr; };
  const Arguments k{address(a.chosen.indices), address(a.chosen.counts), address(a.entry_begin), address(a.entry_end), a.key_begin.i32(), a.key_end.i32(),
                    a.rows.indices.i32(), a.rows.counts.i32(), a.first_token_row, static_cast<int>(a.rows.indices.size(1)),
                    a.chosen.indices.defined() ? static_cast<int>(a.chosen.indices.size(1)) : 0, static_cast<int>(a.window)};
  attended_rows_kernel<<<static_cast<unsigned>(queries), kThreads, 0, stream_of(a.stream)>>>(k);
  check_launch("attended_rows");
}

}  // namespace hyscale
