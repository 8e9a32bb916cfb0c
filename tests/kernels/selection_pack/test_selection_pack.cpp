#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "core/memory.h"
#include "core/rng.h"
#include "kernels/selection_pack/selection_pack.h"

namespace hyscale {
namespace {

struct Host {
  std::vector<int32_t> indices, counts;
  int64_t queries, k;
};

// Query t holds random_count(t) distinct ascending indices below num_keys; the first few hit every edge.
Host random_selection(int64_t queries, int64_t k, int64_t num_keys) {
  Host h{std::vector<int32_t>(queries * k, -1), std::vector<int32_t>(queries), queries, k};
  const Rng rng(17, static_cast<uint64_t>(num_keys));
  uint64_t draw = 0;
  for (int64_t t = 0; t < queries; ++t) {
    const int64_t most = std::min(k, num_keys);
    const int64_t count = t == 0 ? 0 : t == 1 ? most : static_cast<int64_t>(rng.below(draw++, most + 1));
    std::set<int32_t> chosen;
    for (int64_t edge : {num_keys - 1, int64_t{65535}, int64_t{65536}})
      if (static_cast<int64_t>(chosen.size()) < count && 0 <= edge && edge < num_keys) chosen.insert(static_cast<int32_t>(edge));
    while (static_cast<int64_t>(chosen.size()) < count) chosen.insert(static_cast<int32_t>(rng.below(draw++, num_keys)));
    std::copy(chosen.begin(), chosen.end(), h.indices.begin() + t * k);
    h.counts[t] = static_cast<int32_t>(count);
  }
  return h;
}

void expect_round_trip(Device device, int64_t queries, int64_t k, int64_t num_keys) {
  const Host host = random_selection(queries, k, num_keys);
  const int64_t blocks = packed_blocks(num_keys);
  const auto upload = [&](const void* data, Buffer& b) { copy_bytes(b.data(), device, data, {}, b.bytes(), {}); };
  Buffer indices(device, host.indices.size() * 4, "indices"), counts(device, host.counts.size() * 4, "counts");
  Buffer low(device, queries * k * 2, "low"), ends(device, queries * blocks * 2, "ends");
  upload(host.indices.data(), indices);
  upload(host.counts.data(), counts);
  const Selection selection{Tensor(indices.data(), DType::i32, device, {queries, k}), Tensor(counts.data(), DType::i32, device, {queries})};
  const PackedSelection packed{Tensor(low.data(), DType::u16, device, {queries, k}), Tensor(ends.data(), DType::u16, device, {queries, blocks})};
  fill_bytes(packed.low, 0xff, {});
  fill_bytes(packed.block_ends, 0xff, {});
  pack_selection(selection, packed, {});
  fill_bytes(selection.indices, 0x7e, {});
  fill_bytes(selection.counts, 0x7e, {});
  unpack_selection(packed, selection, {});
  std::vector<int32_t> got(host.indices.size()), got_counts(host.counts.size());
  copy_bytes(got.data(), {}, indices.data(), device, indices.bytes(), {});
  copy_bytes(got_counts.data(), {}, counts.data(), device, counts.bytes(), {});
  synchronize(device, {});
  EXPECT_EQ(got, host.indices) << queries << " queries, k " << k << ", " << num_keys << " keys";
  EXPECT_EQ(got_counts, host.counts);
}

void expect_all_round_trips(Device device) {
  for (int64_t queries : {1, 2, 33})
    for (int64_t k : {1, 7, 512})
      for (int64_t num_keys : {int64_t{1}, int64_t{600}, int64_t{65535}, int64_t{65536}, int64_t{65537}, int64_t{1} << 20})
        expect_round_trip(device, queries, k, num_keys);
}

TEST(SelectionPack, RoundTripIsExact) { expect_all_round_trips({}); }

TEST(SelectionPack, NoQueries) { expect_round_trip({}, 0, 4, 10); }

TEST(SelectionPackCuda, RoundTripIsExact) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  expect_all_round_trips({DeviceType::cuda, 0});
}

}  // namespace
}  // namespace hyscale
