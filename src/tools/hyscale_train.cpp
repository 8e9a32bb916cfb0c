// hyscale-train: trains a model from a configuration.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>

#include "tools/main.h"
#include "train/plan.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace hyscale {
namespace {

int run(int argc, char** argv) {
  std::string config_path, resume;
  std::vector<std::string> overrides;
  bool plan = false, reference = false;
  CLI::App app{"Trains a language model with learned sparse attention."};
  app.add_option("--config", config_path, "YAML configuration (keys: --config-reference, docs/config.md)");
  app.add_option("--set", overrides, "section.key=value: overrides a key of the configuration; may be repeated")->expected(1)->take_all();
  app.add_option("--resume", resume, "a checkpoint folder, or 'latest' of checkpoint.directory (starts anew where there is none)");
  app.add_flag("--plan", plan, "print parameters, bytes and FLOPs, and exit: 0 when it fits, 3 when it does not");
  app.add_flag("--config-reference", reference, "print all configuration keys as Markdown");
  app.footer("Exit codes: 0 done; 1 internal error; 2 configuration, file or data; 3 --plan: does not fit; 4 too many non-finite\n"
             "steps; 75 stopped by SIGINT, SIGTERM or SIGUSR1 after saving a checkpoint (continue with --resume latest).");
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
  if (const char* ranks = std::getenv("OMPI_COMM_WORLD_SIZE"); ranks && std::string(ranks) != "1")
    throw UserError(concat("started with ", ranks, " ranks; this build trains on one"));
  const Config config = read_config(config_path, overrides);
  if (plan) {
    const Plan p = make_plan(config);
    std::cout << plan_text(p, config);
    return static_cast<int>(p.fits() ? ExitCode::done : ExitCode::does_not_fit);
  }
  std::cout << "# effective configuration\n" << config_yaml(config) << std::flush;
  install_stop_signals();
  return static_cast<int>(Trainer(config, resume).run());
}

}  // namespace
}  // namespace hyscale

int main(int argc, char** argv) {
  return hyscale::guarded_main("hyscale-train", [&] { return hyscale::run(argc, argv); });
}
