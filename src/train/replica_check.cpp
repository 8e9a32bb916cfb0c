#include "train/replica_check.h"

#include <xxhash.h>

#include <map>

#include "core/memory.h"

namespace hyscale {
namespace {

uint64_t hash_of(const Tensor& value, std::vector<char>& host) {
  if (value.device().is_cpu()) return XXH3_64bits(value.raw(), value.bytes());
  host.resize(value.bytes());
  copy_bytes(host.data(), Device{}, value.raw(), value.device(), value.bytes(), {});
  synchronize(value.device(), {});
  return XXH3_64bits(host.data(), host.size());
}

}  // namespace

std::vector<uint64_t> weight_hashes(ParameterStore& store) {
  std::vector<uint64_t> hashes;
  std::vector<char> host;
  for (int unit = 0; unit < store.num_units(); ++unit) {
    store.open(unit, -1, {});
    for (const Parameter& p : store.all())
      if (p.unit == unit) hashes.push_back(hash_of(p.value, host));
    store.close(unit);
  }
  return hashes;
}

std::optional<ReplicaDifference> find_difference(const std::vector<std::vector<uint64_t>>& hashes, const std::vector<Cut>& cuts, const ParallelSizes& sizes) {
  const int ranks = static_cast<int>(hashes.size());
  for (size_t p = 0; p < cuts.size(); ++p) {
    if (cuts[p] == Cut::ranks) continue;
    const bool expert = cuts[p] == Cut::experts;
    for (int share = 0; share < (expert ? sizes.expert : 1); ++share) {
      const auto holds = [&](int r) { return !expert || place_of(r, sizes).expert == share; };
      const auto hash = [&](int r) { return hashes[static_cast<size_t>(r)][p]; };
      std::map<uint64_t, int> votes;
      for (int r = 0; r < ranks; ++r)
        if (holds(r)) ++votes[hash(r)];
      if (votes.size() < 2) continue;
      int usual = -1;
      for (int r = 0; r < ranks; ++r)
        if (holds(r) && (usual < 0 || votes[hash(r)] > votes[hash(usual)])) usual = r;
      for (int r = 0; r < ranks; ++r)
        if (holds(r) && hash(r) != hash(usual)) return ReplicaDifference{r, p};
    }
  }
  return std::nullopt;
}

void check_replicas(ParameterStore& store, ProcessGroups& groups, int64_t step) {
  const std::vector<uint64_t> mine = weight_hashes(store);
  std::vector<uint64_t> all(mine.size() * static_cast<size_t>(groups.hosts->size()));
  const auto tensor = [](const std::vector<uint64_t>& v) { return Tensor(const_cast<uint64_t*>(v.data()), DType::i64, Device{}, {static_cast<int64_t>(v.size())}); };
  groups.hosts->all_gather(tensor(mine), tensor(all), {});
  std::vector<std::vector<uint64_t>> hashes;
  for (auto rank = all.begin(); rank != all.end(); rank += static_cast<std::ptrdiff_t>(mine.size())) hashes.emplace_back(rank, rank + static_cast<std::ptrdiff_t>(mine.size()));
  std::vector<Cut> cuts;  // parameters lie in the order of their units
  for (const Parameter& p : store.all()) cuts.push_back(p.cut);
  if (const auto different = find_difference(hashes, cuts, groups.sizes))
    throw InternalError(concat("replica check after step ", step, ": ", store.all()[different->parameter].name, " of rank ", different->rank,
                               " differs from the other ranks' copies; continue from an earlier checkpoint, and without that rank's hardware if it happens again"));
}

}  // namespace hyscale
