// Pairs of a 32-bit key and a 32-bit value in the order of their keys, equal keys as they came: CUB's radix sort in an op's workspace.
#pragma once
#include <cub/device/device_radix_sort.cuh>

#include "kernels/common/cuda.cuh"

namespace hyscale {

// Sorts by the bits that keys of at most `most_key` have, in `space` of pair_sort_bytes(pairs) bytes (op.h). Throws when CUB wants more.
inline void sort_by_key(const uint32_t* keys, uint32_t* sorted_keys, const uint32_t* values, uint32_t* sorted_values, int64_t pairs, int64_t most_key, char* space, size_t space_bytes,
                        cudaStream_t stream) {
  int bits = 1;
  while (most_key >> bits) ++bits;
  size_t bytes = 0;
  check_cuda(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted_keys, values, sorted_values, pairs, 0, bits, stream), "sort of pairs");
  HYSCALE_CHECK(bytes <= space_bytes, "the sort of ", pairs, " pairs wants ", bytes, " bytes, not ", space_bytes);
  check_cuda(cub::DeviceRadixSort::SortPairs(space, bytes, keys, sorted_keys, values, sorted_values, pairs, 0, bits, stream), "sort of pairs");
}

}  // namespace hyscale
