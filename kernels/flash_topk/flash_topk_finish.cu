// The ends of FlashTopK on CUDA: an empty state, and a state's indices in order.
#include "kernels/common/cuda.cuh"
#include "kernels/common/op.h"
#include "kernels/flash_topk/flash_topk.h"

namespace hyscale {
namespace {

__global__ void begin_kernel(int32_t* counts, int64_t queries, int32_t* nan_query) {
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; t < queries; t += static_cast<int64_t>(gridDim.x) * blockDim.x) counts[t] = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) *nan_query = static_cast<int32_t>(queries);
}

// Puts the indices of one query in order; what is beyond its count becomes -1. They are all different, so a bitmap of the
// range they span orders them, a window of it at a time.
constexpr int kFinishThreads = 256, kWindowWords = 4096;
template <int kItems>
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const int32_t* __restrict__ indices, const int32_t* __restrict__ counts, int32_t* __restrict__ out,
                                                                int32_t* __restrict__ out_counts, int k) {
  constexpr int kWarps = kFinishThreads / 32;
  __shared__ uint32_t window[kWindowWords];
  __shared__ int32_t ordered[kItems * kFinishThreads];  // they leave in whole lines
  __shared__ int least, most, found[kWarps];
  const int64_t t = blockIdx.x;
  const int count = counts[t], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) least = INT32_MAX, most = -1, out_counts[t] = count;
  __syncthreads();
  int32_t items[kItems];
  int low = INT32_MAX, high = -1;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = i * kFinishThreads + threadIdx.x;
    items[i] = at < count ? indices[t * k + at] : -1;
    if (at < count) low = min(low, items[i]), high = max(high, items[i]);
    else if (at < k) out[t * k + at] = -1;
  }
  low = __reduce_min_sync(~0u, low);
  high = __reduce_max_sync(~0u, high);
  if (lane == 0) atomicMin(&least, low), atomicMax(&most, high);
  __syncthreads();
  int done = 0;
  for (int64_t base = least & ~31; base <= most; base += kWindowWords * 32) {
    const int words = static_cast<int>(min(int64_t{kWindowWords}, (most - base) / 32 + 1)), each = (words + kFinishThreads - 1) / kFinishThreads * 32;  // words of a warp
    for (int i = threadIdx.x; i < words; i += kFinishThreads) window[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      if (const int64_t bit = items[i] - base; items[i] >= 0 && bit >= 0 && bit < words * 32) atomicOr(window + bit / 32, 1u << bit % 32);
    __syncthreads();
    const int first = warp * each, last = min(words, first + each);
    int mine = 0;
    for (int i = first + lane; i < last; i += 32) mine += __popc(window[i]);
    mine = __reduce_add_sync(~0u, mine);
    if (lane == 0) found[warp] = mine;
    __syncthreads();
    int to = done;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) to += found[w];
      done += found[w];
    }
    for (int i = first; i < last; i += 32) {
      uint32_t bits = i + lane < last ? window[i + lane] : 0;
      int upto = __popc(bits);
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += other;
      }
      int32_t* next = ordered + to + upto - __popc(bits);
      for (; bits != 0; bits &= bits - 1) *next++ = static_cast<int32_t>(base) + (i + lane) * 32 + __ffs(bits) - 1;
      to += __shfl_sync(~0u, upto, 31);
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < count; i += kFinishThreads) out[t * k + i] = ordered[i];
}

}  // namespace

void flash_topk_begin_cuda(FlashTopKState& s, Stream stream) {
  HYSCALE_CHECK(s.k <= 4096, "k is ", s.k, ", at most 4096 on CUDA");
  const int64_t queries = s.counts.size(0);
  begin_kernel<<<grid_for(queries, 256), 256, 0, stream_of(stream)>>>(s.counts.i32(), queries, s.nan_query.i32());
  check_launch("flash_topk begin");
}

void flash_topk_finish_cuda(const FlashTopKState& s, const Selection& out, Stream stream) {
  const int64_t queries = s.counts.size(0);
  const int k = static_cast<int>(s.k);
  if (queries == 0) return;
  const auto launch_finish = [&](auto kernel) {
    kernel<<<static_cast<unsigned>(queries), kFinishThreads, 0, stream_of(stream)>>>(s.indices.i32(), s.counts.i32(), out.indices.i32(), out.counts.i32(), k);
  };
  if (k <= 512) launch_finish(finish_kernel<2>);
  else if (k <= 2048) launch_finish(finish_kernel<8>);
  else launch_finish(finish_kernel<16>);
  check_launch("flash_topk finish");
}

}  // namespace hyscale
