#include "kernels/common/row_contributions.h"

#include "kernels/common/cuda.cuh"
#include "kernels/common/pair_sort.cuh"

namespace hyscale {
namespace {

constexpr int kThreads = 256, kAtOnce = 4;

// Slots beyond a query's count have the row `rows`, which sorts behind all others.
__global__ void list_pairs(const int32_t* indices, const int32_t* counts, int64_t first, int64_t pairs, int k, uint32_t rows, uint32_t* row_of, uint32_t* pair_of) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= pairs) return;
  row_of[i] = i % k < counts[first + i / k] ? static_cast<uint32_t>(indices[first * k + i]) : rows;
  pair_of[i] = static_cast<uint32_t>(i);
}

// A warp looks at 32 places of the sorted pairs and adds up the lists of pairs that start there, one after the other, several contributions on their
// way at a time. A lane has kWords pairs of neighbouring columns.
template <int kWords>
__global__ void __launch_bounds__(kThreads) add_lists(const __nv_bfloat162* numbers, const uint32_t* rows, const uint32_t* pairs, int64_t count, uint32_t end, float* to, int64_t stride) {
  constexpr int64_t kWidth = kWords * 32;  // in words
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32 * 32, own = first + lane;
  const uint32_t row_here = own < count ? rows[own] : end, row_before = own > 0 && own <= count ? rows[own - 1] : end;
  for (uint32_t starts = __ballot_sync(~0u, row_here < end && row_here != row_before); starts; starts &= starts - 1) {
    const int start = __ffs(static_cast<int>(starts)) - 1;
    const uint32_t row = __shfl_sync(~0u, row_here, start);
    float2* const sums = reinterpret_cast<float2*>(to + row * stride) + lane;
    float2 sum[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) sum[w] = sums[w * 32];
    for (int64_t at = first + start;; at += 32) {
      const bool same = at + lane < count && rows[at + lane] == row;
      const uint32_t pair = same ? pairs[at + lane] : 0;
      const int here = __popc(__ballot_sync(~0u, same));
      for (int i = 0; i < here; i += kAtOnce) {
        __nv_bfloat162 x[kAtOnce][kWords];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const int64_t from = static_cast<int64_t>(__shfl_sync(~0u, pair, i + u)) * kWidth + lane;
#pragma unroll
          for (int w = 0; w < kWords; ++w) x[u][w] = i + u < here ? __ldcs(numbers + from + w * 32) : __nv_bfloat162{};
        }
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u)
#pragma unroll
          for (int w = 0; w < kWords; ++w) {
            const float2 pair_of_numbers = __bfloat1622float2(x[u][w]);
            sum[w].x += pair_of_numbers.x;
            sum[w].y += pair_of_numbers.y;
          }
      }
      if (here < 32) break;
    }
#pragma unroll
    for (int w = 0; w < kWords; ++w) sums[w * 32] = sum[w];
  }
}

}  // namespace

int64_t queries_at_a_time(int64_t queries, int64_t k, int width) {
  constexpr int64_t kBytes = 2'500'000'000, kPairs = int64_t{1} << 28, kEven = 8 * 132;
  const int64_t slots = std::max<int64_t>(1, k), most = std::max<int64_t>(1, std::min(kBytes / (slots * width * 2), kPairs / slots));
  return std::min(queries, most < kEven ? most : most / kEven * kEven);
}

size_t row_contributions_bytes(int64_t queries, int64_t k, int width) {
  const int64_t pairs = queries * k;
  return aligned_bytes(static_cast<size_t>(pairs * width) * 2) + 4 * aligned_bytes(static_cast<size_t>(pairs) * 4) + pair_sort_bytes(pairs);
}

RowContributions take_row_contributions(int64_t queries, int64_t k, int width, Workspace& w) {
  const int64_t pairs = queries * k;
  RowContributions c;
  c.numbers = w.take<bf16>(pairs * width);
  for (uint32_t** list : {&c.rows, &c.sorted_rows, &c.pairs, &c.sorted_pairs}) *list = w.take<uint32_t>(pairs);
  c.sort_bytes = pair_sort_bytes(pairs);
  c.sort = w.take<char>(static_cast<int64_t>(c.sort_bytes));
  return c;
}

void sort_pairs(const Selection& selection, int64_t first, int64_t last, int64_t rows, const RowContributions& c, cudaStream_t stream) {
  const int64_t k = selection.indices.size(1), pairs = (last - first) * k;
  list_pairs<<<grid_for(pairs, kThreads), kThreads, 0, stream>>>(selection.indices.i32(), selection.counts.i32(), first, pairs, static_cast<int>(k), static_cast<uint32_t>(rows), c.rows, c.pairs);
  sort_by_key(c.rows, c.sorted_rows, c.pairs, c.sorted_pairs, pairs, rows, c.sort, c.sort_bytes, stream);
  check_launch("sort of selected rows");
}

void add_contributions(const RowContributions& c, int64_t pairs, int width, const Tensor& to, cudaStream_t stream) {
  HYSCALE_CHECK(width == 512 || width == 576, "contributions of ", width, " numbers; 512 and 576 are supported");
  const auto kernel = width == 512 ? add_lists<8> : add_lists<9>;
  kernel<<<grid_for(pairs, kThreads), kThreads, 0, stream>>>(reinterpret_cast<const __nv_bfloat162*>(c.numbers), c.sorted_rows, c.sorted_pairs, pairs, static_cast<uint32_t>(to.size(0)),
                                                             to.f32(), to.stride(0));
  check_launch("sums of contributions to rows");
}

}  // namespace hyscale
