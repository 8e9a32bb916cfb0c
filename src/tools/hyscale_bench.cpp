// hyscale-bench: a whole training step; in builds with CUDA also kernels against their floors and against the way of today's systems,
// each result checked.
#include <CLI/CLI.hpp>
#include <iostream>

#include "bench/step_bench.h"
#include "core/file.h"
#include "tools/main.h"
#ifdef HYSCALE_HAS_CUDA
#include "bench/bench.h"
#endif

namespace hyscale {
namespace {

struct StepCommand {
  CLI::App* app = nullptr;
  std::string config;
  std::vector<std::string> overrides;
  int unmeasured = 2, steps = 5;

  explicit StepCommand(CLI::App& parent) : app(parent.add_subcommand("step", "one training step of a configuration: time by phase and part, tokens/s, MFU, peak memory beside the plan")) {
    app->add_option("--config", config, "YAML configuration; its data is not read")->required();
    app->add_option("--set", overrides, "section.key=value, as for hyscale-train; may be repeated")->expected(1)->take_all();
    app->add_option("--unmeasured", unmeasured, "steps before the timed ones")->check(CLI::Range(0, 1000))->capture_default_str();
    app->add_option("--steps", steps, "timed steps")->check(CLI::Range(1, 1000))->capture_default_str();
  }
  int run(const std::string& json) const {
    const bench::StepTimes times = bench::step_benchmark(read_config(config, overrides, Inputs::model), unmeasured, steps);
    std::cout << bench::step_table(times);
    if (!json.empty()) write_text_file(json, bench::to_json(times).dump(1) + "\n");
    return times.check.starts_with("WRONG") ? 1 : 0;
  }
};

// Listed in every build, so that one without CUDA says so by itself.
struct KernelCommands {
  CLI::App *topk, *dense, *delta, *attention, *loss, *layer;
  int64_t queries = 8192, tokens = 1 << 20;
  int ranks = 32;
  double overlap = 0.9;
  std::string family = "glm", only;
  bool quick = false, kinds = false;

  explicit KernelCommands(CLI::App& app)
      : topk(app.add_subcommand("topk", "FlashTopK, and scores in a table with a radix select")),
        dense(app.add_subcommand("dense", "the warm-up stage's attention and index loss")),
        delta(app.add_subcommand("delta", "the gated delta rule forward and backward, beside its roof")),
        attention(app.add_subcommand("attention", "sparse attention forward and backward")),
        loss(app.add_subcommand("loss", "the index loss, beside attention backward")),
        layer(app.add_subcommand("layer", "a layer of one rank: forward, recomputation, backward; and the same with a score table")) {
    attention->add_option("--queries", queries)->check(CLI::Range(64, 1 << 20))->capture_default_str();
    attention->add_option("--family", family, "glm (latent rows) or qwen (blocks of tokens)")->check(CLI::IsMember({"glm", "qwen"}))->capture_default_str();
    loss->add_option("--queries", queries)->check(CLI::Range(64, 1 << 20))->capture_default_str();
    topk->add_option("--only", only, "cases whose name contains this");
    topk->add_flag("--kinds", kinds, "inputs of many kinds (sorted, tied, clustered, short documents) instead of the usual cases");
    layer->add_option("--family", family, "glm (GLM-5.1), deepseek_v4 (its CSA layer) or qwen (Qwen3.8's QSA layer)")->check(CLI::IsMember({"glm", "deepseek_v4", "qwen"}))->capture_default_str();
    layer->add_option("--tokens", tokens, "of the sequence, a multiple of 256 x ranks")->check(CLI::Range(int64_t{256}, int64_t{1} << 24))->capture_default_str();
    layer->add_option("--ranks", ranks, "context ranks that share it")->check(CLI::Range(1, 1024))->capture_default_str();
    layer->add_option("--overlap", overlap, "part of their choices that neighbours share where these are given")->check(CLI::Range(0.0, 1.0))->capture_default_str();
    app.add_flag("--quick", quick, "small cases only");
  }
#ifdef HYSCALE_HAS_CUDA
  int run(const std::string& json) const {
    if (cuda_device_count() == 0) throw UserError("hyscale-bench needs a CUDA device, and none is usable here");
    std::vector<bench::Row> rows;
    if (topk->parsed()) rows = bench::topk_benchmark(quick, kinds, only);
    if (dense->parsed()) rows = bench::dense_benchmark(quick);
    if (delta->parsed()) rows = bench::delta_benchmark(quick);
    if (attention->parsed()) rows = family == "qwen" ? bench::block_attention_benchmark(queries) : bench::attention_benchmark(queries, false);
    if (loss->parsed()) rows = bench::attention_benchmark(queries, true);
    if (layer->parsed()) {
      if (tokens % (256 * ranks) != 0) throw UserError(concat("--tokens ", tokens, " is no multiple of 256 x ", ranks, " ranks"));
      rows = bench::layer_benchmark(family, tokens, ranks, overlap);
    }
    bench::print_table(rows);
    if (!json.empty()) write_text_file(json, bench::to_json(rows).dump(1) + "\n");
    for (const bench::Row& r : rows)
      if (r.check.starts_with("WRONG")) return 1;
    return 0;
  }
#else
  int run(const std::string&) const {
    throw UserError("this build of hyscale-bench has no CUDA and times whole steps alone (hyscale-bench step); the release preset builds with CUDA where nvcc is present");
  }
#endif
};

int run(int argc, char** argv) {
  std::string json;
  CLI::App app{"Times training steps, and kernels in builds with CUDA, and checks their results."};
  add_version(app, "hyscale-bench");
  app.require_subcommand(1);
  app.fallthrough();  // options may stand behind the subcommand
  app.add_option("--json", json, "also write the table to this file");
  StepCommand step(app);
  KernelCommands kernels(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return step.app->parsed() ? step.run(json) : kernels.run(json);
}

}  // namespace
}  // namespace hyscale

int main(int argc, char** argv) {
  return hyscale::guarded_main("hyscale-bench", [&] { return hyscale::run(argc, argv); });
}
