// The replica check over ranks: equal weights pass, one flipped bit on one rank is named by all. Runs on whatever world it is
// launched in.
#include <cstdio>

#include "models/registry.h"
#include "train/replica_check.h"

using namespace hyscale;

namespace {

std::string difference(ParameterStore& store, ProcessGroups& groups) {
  try {
    check_replicas(store, groups, 12);
  } catch (const InternalError& e) {
    return e.what();
  }
  return "equal";
}

void check(const MpiEnvironment& mpi, const ParallelSizes& sizes, bool shard_weights) {
  std::unique_ptr<Communicator> world = mpi.world(), hosts = world->split(0, world->rank());
  ProcessGroups groups = make_process_groups(std::move(world), std::move(hosts), sizes);
  ModelOptions options;
  options.expert_rank = groups.place.expert;
  options.expert_ranks = sizes.expert;
  options.rank = groups.world->rank();
  options.ranks = groups.world->size();
  const std::unique_ptr<Model> model = make_model(read_hf_config("tests/goldens/glm51/config.json"), "config.json", options);
  ParameterStore& store = model->parameters();
  store.allocate(Device{}, DType::f32, {groups.world.get(), groups.expert_replicas.get(), shard_weights});
  store.initialize(1, 0.02f);
  std::string found = difference(store, groups);
  HYSCALE_CHECK(found == "equal", found);
  // The embedding and the router's bias are whole on every rank in every layout.
  const int odd = groups.world->size() - 1;
  for (const char* name : {"model.embed_tokens.weight", "model.layers.1.mlp.gate.e_score_correction_bias"}) {
    float& element = store.find(name)->value.f32()[3];
    const float before = element;
    if (groups.world->rank() == odd) element += 1e-7f;
    found = difference(store, groups);
    element = before;
    const std::string expected = concat("replica check after step 12: ", name, " of rank ", odd, " differs");
    HYSCALE_CHECK(groups.world->size() == 1 || found.starts_with(expected), found, "; expected ", expected);
  }
}

}  // namespace

int main(int argc, char** argv) {
  MpiEnvironment mpi(&argc, &argv);
  try {
    const int ranks = mpi.world()->size();
    for (const bool shard_weights : {false, true})
      for (int expert = 1; expert <= ranks; expert *= 2) check(mpi, {ranks, 1, expert}, shard_weights);
  } catch (const std::exception& e) {
    MpiEnvironment::abort(e.what(), 1);
  }
}
