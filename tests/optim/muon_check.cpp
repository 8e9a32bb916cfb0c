// Muon over the ranks of a job against one rank with the same gradients, before and after a checkpoint that the other layout
// reads. Runs on whatever world it is launched in; exit code 1 names what differs.
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "comm/groups.h"
#include "core/rng.h"
#include "optim/optimizer.h"
#include "train/weights.h"

using namespace hyscale;

namespace {

constexpr int64_t kExperts = 4;

// Shapes that shards cut anywhere: a matrix larger than a shard, heads, experts, vectors between.
void fill(ParameterStore& store, const ProcessGroups& groups) {
  store.add({.name = "embedding", .shape = {37, 16}, .kind = ParameterRole::embedding});
  store.begin_unit(true);
  store.add(norm_weight("norm", 16));
  store.add({.name = "wide", .shape = {150, 61}});
  store.add({.name = "kv_b", .shape = {4 * 13, 24}, .head_rows = {5, 8}});
  store.add({.name = "narrow", .shape = {3, 3}});
  store.add({.name = "indexer", .shape = {20, 9}, .group = ParameterGroup::indexer});
  const int64_t here = kExperts / groups.sizes.expert;
  Parameter experts{.name = "experts", .shape = {here, 14, 11}, .cut = Cut::experts, .first_element = groups.place.expert * here * 14 * 11};
  for (int64_t n = 0; n < kExperts; ++n) experts.hf.push_back({concat("experts.", n), {14, 11}, n * 14 * 11});
  store.add(experts);
  store.begin_unit(false);
  store.add({.name = "head", .shape = {37, 16}, .kind = ParameterRole::head});
}

OptimizerOptions options() {
  OptimizerOptions o{.weight_decay = 0.1, .clip_norm = 1, .indexer_clip_norm = 0.5};
  for (ParameterRole role : {ParameterRole::dense, ParameterRole::experts, ParameterRole::indexer}) o.roles[static_cast<size_t>(role)].muon = true;
  o.muon.steps = quintic_steps(5, 0);
  return o;
}

struct Run {
  ProcessGroups& groups;
  ParameterStore store;
  std::optional<Optimizer> optimizer;

  Run(ProcessGroups& g, bool shard_weights) : groups(g) {
    fill(store, g);
    store.allocate(Device{}, DType::f32, {g.world.get(), g.expert_replicas.get(), shard_weights});
    store.initialize(5, 0.3f);
    optimizer.emplace(store, options(), Device{}, g.world.get());
  }
  // Gradients are a function of parameter, element and step, as after their reduction.
  void step(uint64_t number) {
    double sum = 0;
    for (const ShardPiece& p : store.own_pieces()) {
      const Rng rng(number, std::hash<std::string>{}(p.parameter->name));
      for (int64_t i = 0; i < p.grad.elements(); ++i) p.grad.f32()[i] = rng.normal(static_cast<uint64_t>(p.first_element + i));
    }
    optimizer->update(0.05, Tensor(&sum, DType::f64, Device{}, {1}), {});
    HYSCALE_CHECK(optimizer->result({}).applied, "step ", number, " was not applied");
  }
};

void compare(const Run& many, const Run& one, const char* what, const char* layout) {
  double worst = 0;
  for (const ShardPiece& p : many.store.own_pieces())
    for (const ShardPiece& q : one.store.own_pieces()) {
      if (p.parameter->name != q.parameter->name) continue;
      double difference = 0, norm = 0;
      for (int64_t i = 0; i < p.value.elements(); ++i) {
        const double x = p.value.f32()[i], y = q.value.f32()[p.first_element - q.first_element + i];
        difference += (x - y) * (x - y);
        norm += y * y;
      }
      const double error = std::sqrt(difference / norm);
      HYSCALE_CHECK(error <= 1e-6, what, " in layout ", layout, ": ", p.parameter->name, " differs by ", error, ", allowed 1e-06");
      worst = std::max(worst, error);
    }
  if (many.groups.world->rank() == 0) std::printf("%-24s %-28s worst %.1e\n", layout, what, worst);
}

void save(Run& run, const std::string& folder) {
  if (run.groups.hosts->rank() == 0) std::filesystem::create_directories(folder);
  run.groups.hosts->barrier();
  WriteQueue queue(false);
  run.optimizer->save(folder, queue, std::make_shared<FileDigests>());
  queue.wait();
  run.groups.hosts->barrier();
}

struct Layout {
  const char* name;
  ParallelSizes sizes;
  bool shard_weights = false;
};
const Layout kLayouts[] = {{"one", {1, 1, 1}}, {"dp2", {2, 1, 1}}, {"dp2, zero3", {2, 1, 1}, true}, {"ep2", {2, 1, 2}}, {"dp4", {4, 1, 1}}, {"dp2 x cp2 x ep2, zero3", {2, 2, 2}, true}, {"ep4", {4, 1, 4}}};

void check(const MpiEnvironment& mpi, const Layout& layout) {
  std::unique_ptr<Communicator> world = mpi.world(), hosts = world->split(0, world->rank());
  ProcessGroups groups = make_process_groups(std::move(world), std::move(hosts), layout.sizes), alone = make_single_process_group();
  Run many(groups, layout.shard_weights), one(alone, false);
  for (uint64_t step = 1; step <= 3; ++step) many.step(step), one.step(step);
  compare(many, one, "three steps", layout.name);
  const std::string folder = concat("/tmp/hyscale_muon_check_", layout.sizes.world(), "_", std::hash<std::string>{}(layout.name));
  save(many, folder);
  Run resumed(alone, false), again(groups, layout.shard_weights);
  resumed.optimizer->restore(folder, many.optimizer->updates());
  again.optimizer->restore(folder, many.optimizer->updates());
  for (Run* run : {&many, &one, &resumed, &again}) run->step(4);
  compare(many, one, "a fourth", layout.name);
  compare(many, resumed, "a fourth after a resume on one", layout.name);
  compare(again, one, "a fourth after a resume", layout.name);
  groups.hosts->barrier();
  if (groups.hosts->rank() == 0) std::filesystem::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
  MpiEnvironment mpi(&argc, &argv);
  try {
    for (const Layout& layout : kLayouts)
      if (layout.sizes.world() == mpi.world()->size()) check(mpi, layout);
  } catch (const std::exception& e) {
    MpiEnvironment::abort(e.what(), 1);
  }
}
