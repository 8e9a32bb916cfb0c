// Process groups: how the ranks of a job are divided. Launchers put neighbouring ranks on one host, so what should stay inside
// a host is made of neighbours: the context group (rank = data * context_size + context; the ring's traffic), or else the
// data group (rank = context * data_size + data). The expert group is `expert` neighbouring ranks of the whole job (data and
// context alike); ranks that hold the same experts are its replicas.
#pragma once
#include <memory>

#include "comm/communicator.h"

namespace hyscale {

struct ParallelSizes {
  int data = 1, context = 1, expert = 1;
  bool context_neighbours = true;
  int world() const { return data * context; }
};

// Where a rank stands: its index in its data, context and expert group, and which replica of its experts it is.
struct RankPlace {
  int data, context, expert, expert_replica;
};

// Throws UserError naming the sizes unless data * context == world and expert divides world.
void check_parallel_sizes(const ParallelSizes&, int world);
RankPlace place_of(int rank, const ParallelSizes&);

struct ProcessGroups {
  ParallelSizes sizes;
  RankPlace place{};
  std::unique_ptr<Communicator> hosts;            // all ranks, for tensors in host memory
  std::unique_ptr<Communicator> world;            // gradients of what every rank holds
  std::unique_ptr<Communicator> data;             // ranks with the same part of different sequences
  std::unique_ptr<Communicator> context;          // ranks with different parts of one sequence
  std::unique_ptr<Communicator> expert;           // ranks that share out the experts
  std::unique_ptr<Communicator> expert_replicas;  // ranks that hold the same experts: their gradients
};
// `world` moves tensors of the ranks' devices, `hosts` those in host memory.
ProcessGroups make_process_groups(std::unique_ptr<Communicator> world, std::unique_ptr<Communicator> hosts, const ParallelSizes&);
ProcessGroups make_single_process_group();
// The groups of one rank of a job that does not exist, for plans.
ProcessGroups make_meta_process_groups(int rank, const ParallelSizes&);

}  // namespace hyscale
