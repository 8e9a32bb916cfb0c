// hyscale-train: trains a model from a configuration.
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <set>
#include <thread>

#include "tools/main.h"
#include "train/cluster.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace hyscale {
namespace {

// True when no two ranks use the same GPU.
bool own_gpus(Communicator& world, Device device) {
  int64_t mine = static_cast<int64_t>(std::hash<std::string>{}(host_name() + cuda_device_identity(device)));
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  world.all_gather(Tensor(&mine, DType::i64, Device{}, {1}), Tensor(all.data(), DType::i64, Device{}, {world.size()}), {});
  return std::set<int64_t>(all.begin(), all.end()).size() == all.size();
}

// The ranks of the job, over NCCL where each has a GPU of its own and over MPI otherwise.
ProcessGroups groups_over_mpi(const MpiEnvironment& mpi, Device device, const ParallelSizes& sizes) {
  std::unique_ptr<Communicator> world = mpi.world();
  check_parallel_sizes(sizes, world->size());
  std::unique_ptr<Communicator> hosts = world->split(0, world->rank());
  const bool over_nccl = device.is_cuda() && world->size() > 1 && own_gpus(*world, device);
#ifdef HYSCALE_HAS_CUDA
  if (over_nccl) world = make_nccl_communicator(std::move(world), device);
#endif
  HYSCALE_CHECK(!over_nccl || built_with_cuda(), "a CUDA device in a build without CUDA");
  if (world->rank() == 0)
    spdlog::info("{} ranks over {}: data {} x context {}, experts over {}", world->size(), world->transport(), sizes.data, sizes.context, sizes.expert);
  return make_process_groups(std::move(world), std::move(hosts), sizes);
}

// A mistake of the user is mostly every rank's own: the first says it, and by then the launcher has ended the others.
void let_the_first_rank_speak() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    const char* rank = std::getenv(name);
    if (rank && std::string(rank) != "0") return std::this_thread::sleep_for(std::chrono::seconds(2));
  }
}

// Whether a launcher (mpirun, or srun with PMI) started this process; alone it needs no MPI.
bool launched_with_ranks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"})
    if (std::getenv(name)) return true;
  return false;
}

int train_as_rank(const Config& config, const std::string& resume, Device device, ProcessGroups groups) {
  if (groups.hosts->rank() == 0) std::cout << "# effective configuration\n" << config_yaml(config) << std::flush;
  install_stop_signals(groups.hosts->rank() == 0);
  return static_cast<int>(Trainer(config, resume, device, groups).run());
}

int train(const Config& config, const std::string& resume, int argc, char** argv) {
  const ParallelSizes sizes = parallel_sizes(config);
  if (!launched_with_ranks()) {
    if (sizes.world() != 1) throw UserError(concat("parallel: data ", sizes.data, " x context ", sizes.context, " = ", sizes.world(), " ranks, but the job has 1; start it with mpirun"));
    return train_as_rank(config, resume, choose_device(config.run.device), make_single_process_group());
  }
  const MpiEnvironment mpi(&argc, &argv);
  // One rank's failure ends the job: the others may be waiting for it in a collective.
  try {
    const Device device = choose_device(config.run.device, mpi.local_rank());
    return train_as_rank(config, resume, device, groups_over_mpi(mpi, device, sizes));
  } catch (const UserError& e) {
    let_the_first_rank_speak();
    MpiEnvironment::abort(e.what(), 2);
  } catch (const std::exception& e) {
    MpiEnvironment::abort(e.what(), 1);
  }
}

int run(int argc, char** argv) {
  std::string config_path, resume, cluster;
  std::vector<std::string> overrides;
  bool plan = false, reference = false;
  CLI::App app{"Trains a language model with learned sparse attention."};
  add_version(app, "hyscale-train");
  app.add_option("--config", config_path, "YAML configuration (keys: --config-reference, docs/config.md)");
  app.add_option("--set", overrides, "section.key=value: overrides a key of the configuration; may be repeated")->expected(1)->take_all();
  app.add_option("--resume", resume, "a checkpoint folder, or 'latest' of checkpoint.directory (starts anew where there is none)")->take_last();
  app.add_flag("--plan", plan, "print parameters, bytes and FLOPs, and exit: 0 when it fits, 3 when it does not");
  app.add_option("--cluster", cluster, "with --plan: estimate the time of a step on a cluster, e.g. h20x512");
  app.add_flag("--config-reference", reference, "print all configuration keys as Markdown");
  app.footer("Exit codes: 0 done; 1 internal error; 2 configuration, file or data; 3 --plan: does not fit; 4 too many non-finite\n"
             "steps; 5 a spike that guard stops at; 6 train.overfit_loss not reached; 75 stopped by SIGINT, SIGTERM, SIGUSR1 or SIGHUP after saving a checkpoint (continue with --resume latest).");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (reference) {
    std::cout << config_reference();
    return 0;
  }
  if (config_path.empty()) throw UserError("--config FILE is missing; see --help");
  const Config config = read_config(config_path, overrides, plan ? Inputs::model : Inputs::all);
  if (!cluster.empty() && !plan) throw UserError("--cluster acts only with --plan");
  if (plan) {
    const Plan p = make_plan(config);
    std::cout << plan_text(p, config);
    if (!cluster.empty()) std::cout << cluster_text(p, config, parse_cluster(cluster));
    return static_cast<int>(p.fits() ? ExitCode::done : ExitCode::does_not_fit);
  }
  return train(config, resume, argc, argv);
}

}  // namespace
}  // namespace hyscale

int main(int argc, char** argv) {
  return hyscale::guarded_main("hyscale-train", [&] {
    try {
      return hyscale::run(argc, argv);
    } catch (const hyscale::UserError&) {
      hyscale::let_the_first_rank_speak();
      throw;
    }
  });
}
