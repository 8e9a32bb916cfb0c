#include "comm/groups.h"

namespace hyscale {

void check_parallel_sizes(const ParallelSizes& s, int world) {
  if (s.data < 1 || s.context < 1 || s.expert < 1 || s.world() != world)
    throw UserError(concat("parallel.data ", s.data, " x parallel.context ", s.context, " = ", s.world(), ", but the job has ",
                           world, " ranks; set them so that the product is ", world));
  if (world % s.expert != 0)
    throw UserError(concat("parallel.expert ", s.expert, " does not divide the ", world, " ranks of the job"));
}

RankPlace place_of(int rank, const ParallelSizes& s) {
  if (s.context_neighbours) return {rank / s.context, rank % s.context, rank % s.expert, rank / s.expert};
  return {rank % s.data, rank / s.data, rank % s.expert, rank / s.expert};
}

ProcessGroups make_process_groups(std::unique_ptr<Communicator> world, std::unique_ptr<Communicator> hosts, const ParallelSizes& sizes) {
  check_parallel_sizes(sizes, world->size());
  ProcessGroups g;
  g.sizes = sizes;
  g.place = place_of(world->rank(), sizes);
  g.data = world->split(g.place.context, g.place.data);
  g.context = world->split(g.place.data, g.place.context);
  g.expert = world->split(g.place.expert_replica, g.place.expert);
  g.expert_replicas = world->split(g.place.expert, g.place.expert_replica);
  g.world = std::move(world);
  g.hosts = std::move(hosts);
  return g;
}

ProcessGroups make_single_process_group() { return make_process_groups(make_single_communicator(), make_single_communicator(), {}); }

ProcessGroups make_meta_process_groups(int rank, const ParallelSizes& sizes) {
  check_parallel_sizes(sizes, sizes.world());
  const RankPlace p = place_of(rank, sizes);
  ProcessGroups g;
  g.sizes = sizes;
  g.place = p;
  g.hosts = make_meta_communicator(rank, sizes.world());
  g.world = make_meta_communicator(rank, sizes.world());
  g.data = make_meta_communicator(p.data, sizes.data);
  g.context = make_meta_communicator(p.context, sizes.context);
  g.expert = make_meta_communicator(p.expert, sizes.expert);
  g.expert_replicas = make_meta_communicator(p.expert_replica, sizes.world() / sizes.expert);
  return g;
}

}  // namespace hyscale
