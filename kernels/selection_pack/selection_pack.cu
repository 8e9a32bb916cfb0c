// One warp per query; both kernels move each byte once. A block end is found by binary search over the ascending indices.
#include <cuda_runtime.h>

#include "kernels/selection_pack/selection_pack_cuda.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256;

// First slot of index[0, count) that is >= bound.
__device__ int lower_bound(const int32_t* index, int count, int64_t bound) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (index[middle] < bound) low = middle + 1;
    else high = middle;
  }
  return low;
}

__global__ void pack(const int32_t* indices, const int32_t* counts, uint16_t* low, uint16_t* ends, int64_t queries, int k, int blocks) {
  const int64_t t = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (t >= queries) return;
  const int count = counts[t];
  indices += t * k;
  for (int j = lane; j < count; j += 32) low[t * k + j] = static_cast<uint16_t>(indices[j] & 0xffff);
  for (int b = lane; b < blocks; b += 32)
    ends[t * blocks + b] = static_cast<uint16_t>(lower_bound(indices, count, (static_cast<int64_t>(b) + 1) << 16));
}

__global__ void unpack(const uint16_t* low, const uint16_t* ends, int32_t* indices, int32_t* counts, int64_t queries, int k, int blocks) {
  const int64_t t = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (t >= queries) return;
  ends += t * blocks;
  const int count = ends[blocks - 1];
  int block = 0;  // a lane's slots ascend, so its block does too
  for (int j = lane; j < k; j += 32) {
    while (j < count && j >= ends[block]) ++block;
    indices[t * k + j] = j < count ? block << 16 | low[t * k + j] : -1;
  }
  if (lane == 0) counts[t] = count;
}

unsigned grid(int64_t queries) { return static_cast<unsigned>((queries * 32 + kThreads - 1) / kThreads); }

void check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  HYSCALE_CHECK(status == cudaSuccess, kernel, ": ", cudaGetErrorString(status));
}

}  // namespace

void pack_selection_cuda(const Selection& from, const PackedSelection& to, Stream stream) {
  const int64_t queries = from.counts.size(0);
  if (queries == 0) return;
  pack<<<grid(queries), kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      from.indices.i32(), from.counts.i32(), to.low.data<uint16_t>(), to.block_ends.data<uint16_t>(), queries,
      static_cast<int>(from.indices.size(1)), static_cast<int>(to.block_ends.size(1)));
  check_launch("pack_selection");
}

void unpack_selection_cuda(const PackedSelection& from, const Selection& to, Stream stream) {
  const int64_t queries = to.counts.size(0);
  if (queries == 0) return;
  unpack<<<grid(queries), kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      from.low.data<uint16_t>(), from.block_ends.data<uint16_t>(), to.indices.i32(), to.counts.i32(), queries,
      static_cast<int>(to.indices.size(1)), static_cast<int>(from.block_ends.size(1)));
  check_launch("unpack_selection");
}

}  // namespace hyscale
