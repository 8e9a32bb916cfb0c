// One thread block per group of queries. A selected block's place among all of the group's is its own number plus, by binary search, how
// many of every other query's come before it; equal ones lie side by side then, and the first of them counts.
#include "kernels/block_attention/united_blocks.h"
#include "kernels/common/cuda.cuh"

namespace hyscale {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// How many of ids[0, count) are below `id`.
__device__ int below(const int32_t* ids, int count, int32_t id) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ids[middle] < id) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Sum of x over the threads before this one.
__device__ int sum_before(int x) {
  __shared__ int parts[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int sum = x;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) parts[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += parts[w];
  return sum - x;
}

__global__ void __launch_bounds__(kThreads) unite(const AttendedTokens tokens, int64_t first, int64_t last, const UnitedBlocks u) {
  extern __shared__ int32_t ids[];                                        // [united, k]
  uint32_t* sorted = reinterpret_cast<uint32_t*>(ids + u.united * u.k);    // [united k]: 8 id + query
  uint16_t* slots = reinterpret_cast<uint16_t*>(sorted + u.united * u.k);  // the same: its number in the query's selection
  __shared__ int counts[kMostUnited], leaders;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t t = first + static_cast<int64_t>(blockIdx.x) * u.united;
  const int here = static_cast<int>(min(static_cast<int64_t>(u.united), last - t));
  if (thread < kMostUnited) counts[thread] = thread < here ? tokens.counts[t + thread] : 0;
  for (int i = thread; i < here * u.k; i += kThreads) ids[i] = tokens.indices[t * u.k + i];
  __syncthreads();
  for (int i = thread; i < here * u.k; i += kThreads) {
    const int query = i / u.k, slot = i % u.k;
    if (slot >= counts[query]) continue;
    int place = slot;
    for (int q = 0; q < here; ++q)
      if (q != query) place += below(ids + q * u.k, counts[q], ids[i] + (q < query));
    sorted[place] = static_cast<uint32_t>(ids[i]) * kMostUnited + static_cast<uint32_t>(query);
    slots[place] = static_cast<uint16_t>(slot);
  }
  __syncthreads();
  int total = 0;
  for (int q = 0; q < here; ++q) total += counts[q];
  const auto leads = [&](int i) { return i == 0 || sorted[i - 1] / kMostUnited != sorted[i] / kMostUnited; };
  const int share = (total + kThreads - 1) / kThreads, begin = min(thread * share, total), end = min(begin + share, total);
  int own = 0;
  for (int i = begin; i < end; ++i) own += leads(i);
  int at = sum_before(own);
  if (thread == kThreads - 1) leaders = at + own;
  UnitedBlock* blocks = u.blocks + static_cast<int64_t>(blockIdx.x) * u.most();
  for (int i = begin; i < end; ++i) {
    if (!leads(i)) continue;
    const uint32_t id = sorted[i] / kMostUnited;
    uint32_t readers = 0;
    for (int j = i; j < total && sorted[j] / kMostUnited == id; ++j) {
      const uint32_t query = sorted[j] % kMostUnited;
      readers |= 15u << 4 * query;
      if (u.slots) u.slots[(static_cast<int64_t>(blockIdx.x) * u.most() + at) * kMostUnited + query] = slots[j];
    }
    blocks[at++] = {tokens.first_token[id], readers};
  }
  __syncthreads();
  if (thread != 0) return;
  int all = leaders;
  for (int q = 0; q < here; ++q) {
    const int tail = (tokens.positions[t + q] + 1) % tokens.ratio;
    const int32_t row = static_cast<int32_t>(tokens.first_row + t + q + 1 - tail);
    if (tail == 0) continue;
    if (all == leaders || blocks[all - 1].row != row) blocks[all++] = {row, 0};
    blocks[all - 1].readers |= ((1u << tail) - 1) << 4 * q;
  }
  u.counts[blockIdx.x] = {leaders, all};
}

}  // namespace

void unite_blocks(const AttendedTokens& tokens, int64_t first, int64_t last, const UnitedBlocks& u, cudaStream_t stream) {
  const size_t shared = static_cast<size_t>(u.united) * static_cast<size_t>(u.k) * 10;
  check_cuda(cudaFuncSetAttribute(unite, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "shared memory of unite_blocks");
  unite<<<static_cast<unsigned>((last - first + u.united - 1) / u.united), kThreads, shared, stream>>>(tokens, first, last, u);
  check_launch("unite_blocks");
}

}  // namespace hyscale
