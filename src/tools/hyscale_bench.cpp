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
  app.add_option("--json", json, "also write the table to this file");
  app.add_flag("--quick", quick, "small cases only");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (cuda_device_count() == 0) throw UserError("hyscale-bench needs a CUDA device, and none is usable here");
  std::vector<bench::Row> rows;
  if (topk->parsed()) rows = bench::topk_benchmark(quick);
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
