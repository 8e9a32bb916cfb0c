#include "kernels/selection_pack/selection_pack.h"

#include <algorithm>

#include "kernels/common/op.h"
#include "kernels/selection_pack/selection_pack_cuda.h"

namespace hyscale {
namespace {

struct Sizes {
  int64_t queries, k, blocks;
};

Sizes check_sizes(const Selection& s, const PackedSelection& p) {
  const Sizes n{s.counts.size(0), s.indices.size(1), p.block_ends.size(1)};
  HYSCALE_CHECK(n.k <= 65535, "k is ", n.k, ", packed selections hold at most 65535");
  check_tensor(s.indices, "indices", DType::i32, {n.queries, n.k});
  check_tensor(s.counts, "counts", DType::i32, {n.queries});
  check_tensor(p.low, "low", DType::u16, {n.queries, n.k});
  check_tensor(p.block_ends, "block_ends", DType::u16, {n.queries, n.blocks});
  HYSCALE_CHECK(n.blocks >= 1, "block_ends has no column");
  for (const Tensor* t : {&s.indices, &s.counts, &p.low, &p.block_ends})
    HYSCALE_CHECK(t->is_contiguous() && t->device() == s.indices.device(), "selection tensor ", to_string(*t));
  return n;
}

void pack_ref(const Selection& from, const PackedSelection& to, const Sizes& n) {
#pragma omp parallel for
  for (int64_t t = 0; t < n.queries; ++t) {
    const int32_t* index = from.indices.i32() + t * n.k;
    const int32_t count = from.counts.i32()[t];
    uint16_t* low = to.low.data<uint16_t>() + t * n.k;
    uint16_t* ends = to.block_ends.data<uint16_t>() + t * n.blocks;
    std::fill_n(ends, n.blocks, uint16_t{0});
    for (int32_t j = 0; j < count; ++j) {
      low[j] = static_cast<uint16_t>(index[j] & 0xffff);
      ++ends[index[j] >> 16];
    }
    for (int64_t b = 1; b < n.blocks; ++b) ends[b] = static_cast<uint16_t>(ends[b] + ends[b - 1]);
  }
}

void unpack_ref(const PackedSelection& from, const Selection& to, const Sizes& n) {
#pragma omp parallel for
  for (int64_t t = 0; t < n.queries; ++t) {
    const uint16_t* low = from.low.data<uint16_t>() + t * n.k;
    const uint16_t* ends = from.block_ends.data<uint16_t>() + t * n.blocks;
    int32_t* index = to.indices.i32() + t * n.k;
    const int32_t count = ends[n.blocks - 1];
    int64_t block = 0;
    for (int32_t j = 0; j < count; ++j) {
      while (j >= ends[block]) ++block;
      index[j] = static_cast<int32_t>(block << 16 | low[j]);
    }
    std::fill(index + count, index + n.k, -1);
    to.counts.i32()[t] = count;
  }
}

}  // namespace

int64_t packed_blocks(int64_t num_keys) { return std::max<int64_t>(1, (num_keys + 65535) / 65536); }

void pack_selection(const Selection& from, const PackedSelection& to, Stream stream) {
  const Sizes n = check_sizes(from, to);
  switch (from.indices.device().type) {
    case DeviceType::cpu: return pack_ref(from, to, n);
    case DeviceType::meta: return;
    case DeviceType::cuda:
#ifdef HYSCALE_HAS_CUDA
      return pack_selection_cuda(from, to, stream);
#endif
      break;
  }
  (void)stream;
  unsupported_device("pack_selection", from.indices.device());
}

void unpack_selection(const PackedSelection& from, const Selection& to, Stream stream) {
  const Sizes n = check_sizes(to, from);
  switch (from.low.device().type) {
    case DeviceType::cpu: return unpack_ref(from, to, n);
    case DeviceType::meta: return;
    case DeviceType::cuda:
#ifdef HYSCALE_HAS_CUDA
      return unpack_selection_cuda(from, to, stream);
#endif
      break;
  }
  (void)stream;
  unsupported_device("unpack_selection", from.low.device());
}

}  // namespace hyscale
