// Weights that several ranks hold must be equal bit for bit: each of them made its copy from the same shards. A difference
// comes from broken memory or transport, and would otherwise spread into every later step.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "models/parameter_store.h"

namespace hyscale {

// XXH3 of each parameter's value here. Collective where weights are sharded: they are gathered for it.
std::vector<uint64_t> weight_hashes(ParameterStore&);

// A rank whose copy differs from those of most ranks that hold the same parameter (from the first of them in a draw).
struct ReplicaDifference {
  int rank;
  size_t parameter;
};
// hashes[rank][parameter]; experts are held by the ranks with the same share of them, what is cut over all ranks by one each.
std::optional<ReplicaDifference> find_difference(const std::vector<std::vector<uint64_t>>& hashes, const std::vector<Cut>& cuts, const ParallelSizes&);

// Collective over the ranks of the groups. Throws InternalError on all of them, naming rank and parameter.
void check_replicas(ParameterStore&, ProcessGroups&, int64_t step);

}  // namespace hyscale
