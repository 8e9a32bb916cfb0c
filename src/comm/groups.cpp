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
  return {rank / s.context, rank % s.context, rank % s.expert, rank / s.expert};
}

ProcessGroups make_process_groups(std::unique_ptr<Communicator> world, const ParallelSizes& sizes) {
  check_parallel_sizes(sizes, world->size());
  ProcessGroups g;
  g.sizes = sizes;
  g.place = place_of(world->rank(), sizes);
  g.data = world->split(g.place.context, g.place.data);
  g.context = world->split(g.place.data, g.place.context);
  g.expert = world->split(g.place.expert_replica, g.place.expert);
  g.expert_replicas = world->split(g.place.expert, g.place.expert_replica);
  g.world = std::move(world);
  return g;
}

}  // namespace hyscale
