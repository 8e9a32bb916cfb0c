// hyscale-bench: kernels against their floors and against the way of today's systems, each result checked.
#include <CLI/CLI.hpp>

#include "bench/bench.h"
#include "core/file.h"
#include "tools/main.h"

namespace hyscale {
namespace {

int run(int argc, char** argv) {
  std::string json;
  bool quick = false;
  CLI::App app{"Times kernels on the GPU and checks their results."};
  app.require_subcommand(1);
  app.fallthrough();  // options may stand behind the subcommand
  CLI::App* topk = app.add_subcommand("topk", "FlashTopK, and scores in a table with a radix select");
  CLI::App* dense = app.add_subcommand("dense", "the warm-up stage's attention and index loss");
  CLI::App* attention = app.add_subcommand("attention", "sparse attention forward and backward");
  CLI::App* loss = app.add_subcommand("loss", "the index loss, beside attention backward");
  CLI::App* layer = app.add_subcommand("layer", "a layer of one rank: forward, recomputation, backward; and the same with a score table");
  int64_t queries = 8192, tokens = 1 << 20;
  int ranks = 32;
  std::string family = "glm", only;
  attention->add_option("--queries", queries)->check(CLI::Range(64, 1 << 20))->capture_default_str();
  loss->add_option("--queries", queries)->check(CLI::Range(64, 1 << 20))->capture_default_str();
  topk->add_option("--only", only, "cases whose name contains this");
  layer->add_option("--family", family, "glm (GLM-5.1) or deepseek_v4 (its CSA layer)")->check(CLI::IsMember({"glm", "deepseek_v4"}))->capture_default_str();
  layer->add_option("--tokens", tokens, "of the sequence, a multiple of 256 x ranks")->check(CLI::Range(int64_t{256}, int64_t{1} << 24))->capture_default_str();
  layer->add_option("--ranks", ranks, "context ranks that share it")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--json", json, "also write the table to this file");
  app.add_flag("--quick", quick, "small cases only");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (cuda_device_count() == 0) throw UserError("hyscale-bench needs a CUDA device, and none is usable here");
  std::vector<bench::Row> rows;
  if (topk->parsed()) rows = bench::topk_benchmark(quick, only);
  if (dense->parsed()) rows = bench::dense_benchmark(quick);
  if (attention->parsed()) rows = bench::attention_benchmark(queries, false);
  if (loss->parsed()) rows = bench::attention_benchmark(queries, true);
  if (layer->parsed()) {
    if (tokens % (256 * ranks) != 0) throw UserError(concat("--tokens ", tokens, " is no multiple of 256 x ", ranks, " ranks"));
    rows = bench::layer_benchmark(family, tokens, ranks);
  }
  bench::print_table(rows);
  if (!json.empty()) write_text_file(json, bench::to_json(rows).dump(1) + "\n");
  for (const bench::Row& r : rows)
    if (r.check.starts_with("WRONG")) return 1;
  return 0;
}

}  // namespace
}  // namespace hyscale

int main(int argc, char** argv) {
  return hyscale::guarded_main("hyscale-bench", [&] { return hyscale::run(argc, argv); });
}
