// hyscale-report: a run's folder as one HTML page.
#include <CLI/CLI.hpp>
#include <iostream>

#include "core/file.h"
#include "report/page.h"
#include "tools/main.h"

namespace hyscale {
namespace {

int run(int argc, char** argv) {
  std::string folder, output;
  bool summary = false;
  CLI::App app{"Makes one HTML page of a run: losses, rates, time by part, health of selection, configuration."};
  add_version(app, "hyscale-report");
  app.add_option("run", folder, "folder of the run (checkpoint.directory), also of one that is still going on")->required();
  app.add_option("-o,--output", output, "the page; default: report.html in the folder");
  app.add_flag("--summary", summary, "print the summary instead, and write nothing");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  const RunHistory history(folder);
  if (summary) {
    for (const std::string& sentence : run_summary(history)) std::cout << sentence << "\n";
    return 0;
  }
  if (output.empty()) output = folder + "/report.html";
  write_text_file(output, report_page(history));
  std::cout << output << "\n";
  return 0;
}

}  // namespace
}  // namespace hyscale

int main(int argc, char** argv) {
  return hyscale::guarded_main("hyscale-report", [&] { return hyscale::run(argc, argv); });
}
