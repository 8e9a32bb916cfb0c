// Reading a run's folder, whatever state it is in, and the page made of it.
#include "report/page.h"

#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>

#include "core/error.h"
#include "tests/support/processes.h"

namespace hyscale {
namespace {

using nlohmann::json;
using test::contains;
using test::run;
using test::TemporaryFolder;

json step_line(int64_t step, int64_t layers) {
  json line{{"step", step}, {"loss", 4.0 / static_cast<double>(step)}, {"index_loss", 0.1}, {"balance_loss", 1.1}, {"mtp_loss", 5}, {"lr", 1e-3}, {"grad_norm", 2.5}, {"indexer_grad_norm", 0.5},
            {"applied", true}, {"tokens", step * 1000}, {"seconds", 2}, {"tokens_per_second", 500}, {"peak_bytes", int64_t{3} << 30}, {"mfu", 0.25}, {"sent_bytes", 1000},
            {"context_transfer_seconds", 0.5}, {"context_wait_seconds", 0.1}, {"rank_compute_seconds", {1.5, 1.75}}};
  for (int64_t i = 0; i < layers; ++i) line["index_loss_of_layer"].push_back(0.01 * static_cast<double>(i + 1));
  if (step % 2) return line;
  line["seconds_of_part"] = {{"selection", 0.5}, {"attention", 1.0}, {"the rest", 0.5}};
  line["seconds_of_phase"] = {{"forward layers", 0.75}, {"backward layers", 1.25}};
  for (const char* key : {"selection_recall", "selection_shared_by_neighbours", "selection_shared_with_layer_below", "selection_tied"})
    for (int64_t i = 0; i < layers; ++i) line[key].push_back(i == 0 && contains(key, "below") ? json(nullptr) : json(0.5 + 0.001 * static_cast<double>(i)));
  return line;
}

std::string run_folder(const TemporaryFolder& folder, const std::string& name, const std::string& metrics, const std::string& config = "") {
  test::write_file(folder / (name + "/metrics.jsonl"), metrics);
  if (!config.empty()) test::write_file(folder / (name + "/config.yaml"), config);
  return folder / name;
}

std::string lines(int64_t steps, int64_t layers) {
  std::string text;
  for (int64_t s = 1; s <= steps; ++s) {
    text += step_line(s, layers).dump() + "\n";
    if (s % 5 == 0) text += json{{"step", s}, {"validation_loss", 3.5}, {"seconds", 1}}.dump() + "\n";
  }
  return text;
}

// Python's own parsers: every tag is closed where it should be, every SVG is XML, every block of numbers is JSON, nothing is loaded from
// elsewhere. Prints the names of the series.
constexpr const char* kCheckPage = R"(
import html.parser, json, re, sys, xml.etree.ElementTree as tree
page = open(sys.argv[1], encoding='utf-8').read()
class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []
    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            assert name not in ('src', 'href'), (tag, name, value)
        if tag not in ('meta',): self.open.append(tag)
    def handle_startendtag(self, tag, attributes): pass
    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()
p = Page()
p.feed(page)
p.close()
assert not p.open, p.open
charts = re.findall(r'<svg.*?</svg>', page, re.S)
for svg in charts: tree.fromstring(svg)
data = re.findall(r'<script type="application/json">(.*?)</script>', page, re.S)
assert len(data) == len(charts) == int(sys.argv[2]), (len(data), len(charts))
for text in data:
    for series in json.loads(text)['series']:
        assert len(series['x']) == len(series['y']) > 0
        print(series['name'])
assert 'http' not in page and 'url(' not in page and '@import' not in page
)";
std::set<std::string> check_page(const std::string& page, int charts) {
  const TemporaryFolder folder;
  test::write_file(folder / "page.html", page);
  const auto r = run({"/usr/bin/env", "python3", "-c", kCheckPage, folder / "page.html", std::to_string(charts)});
  EXPECT_EQ(r.code, 0) << r.output;
  std::set<std::string> names;
  std::istringstream lines(r.output);
  for (std::string name; std::getline(lines, name);) names.insert(name);
  return names;
}

TEST(Report, HoldsEverySeriesAndParses) {
  const TemporaryFolder folder;
  for (const int64_t layers : {3, 12}) {  // as lines, and as heat maps
    const std::string page = report_page(RunHistory(run_folder(folder, "run", lines(20, layers), "train:\n  steps: 40\n")));
    const std::set<std::string> names = check_page(page, 20);
    for (const char* name : {"training", "multi-token prediction", "validation", "all but indexers", "indexers", "learning rate", "balance loss", "tokens per second", "seconds", "MFU",
                             "peak memory", "attention 50.0%", "selection 25.0%", "the rest 25.0%", "forward layers 37.5%", "backward layers 62.5%", "selection", "index loss", "sent",
                             "in transfer", "work waited", "layer 0", "layer 2", "rank 1"})
      EXPECT_TRUE(names.count(name)) << name;
    for (const char* title : {"Loss", "Gradient norm", "Learning rate", "Throughput", "Model FLOPs utilization", "Peak memory", "Time by part", "Selection&#39;s share of a step", "Index loss of each layer",
                              "Recall of attention mass", "Keys shared by neighbouring queries", "Keys shared with the layer below", "Ties at the last place"})
      EXPECT_CONTAINS(page, "<b>" + std::string(title) + "</b>");
    EXPECT_EQ(contains(page, "<rect"), layers > 8);
    EXPECT_CONTAINS(page, "Step 20 of 40, 20,000 tokens, 40 s in steps.");
    EXPECT_CONTAINS(page, "The loss went from 4.0000 to 0.2000");
    EXPECT_CONTAINS(page, "MFU 25.0%");
  }
}

// A browser without a window runs the page, and a pointer over the first chart.
TEST(Report, ABrowserShowsTheChartsAndTheValuesUnderThePointer) {
  const char* browser = "/usr/bin/chromium";
  if (!std::filesystem::exists(browser)) GTEST_SKIP() << browser << " is not installed";
  const TemporaryFolder folder;
  constexpr const char* pointer = R"(<script>
const svg = document.querySelector("figure svg"), box = svg.getBoundingClientRect();
svg.dispatchEvent(new PointerEvent("pointermove", {clientX: box.right - 12, clientY: box.top + box.height / 2}));
document.body.dataset.drawn = [...document.querySelectorAll("svg")].filter(s => s.getBoundingClientRect().width > 100).length;
</script>)";
  for (const int64_t layers : {3, 12}) {
    const std::string page = report_page(RunHistory(run_folder(folder, "run", lines(20, layers), "train:\n  steps: 40\n")));
    test::write_file(folder / "page.html", page + pointer);
    const auto r = run({"/usr/bin/timeout", "60", browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--user-data-dir=" + (folder / "profile"), "--dump-dom",
                        "file://" + (folder / "page.html")});
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_FALSE(contains(r.output, "CONSOLE")) << r.output.substr(r.output.find("CONSOLE"), 400);
    EXPECT_CONTAINS(r.output, "data-drawn=\"20\"");
    EXPECT_CONTAINS(r.output, "<b>step 20</b>");
    EXPECT_CONTAINS(r.output, "<span>training</span><em>0.2</em>");
  }
}

TEST(Report, LongRunsAreDrawnInColumns) {
  const TemporaryFolder folder;
  const std::string page = report_page(RunHistory(run_folder(folder, "run", lines(5000, 12))));
  check_page(page, 20);
  EXPECT_LT(page.size(), 1500000u);
  EXPECT_CONTAINS(page, "class=\"band");
}

TEST(Report, ARunThatWasResumedCountsEveryStepOnceAndTheLaterWins) {
  const TemporaryFolder folder;
  std::string text = lines(10, 2);
  for (int64_t s = 7; s <= 8; ++s) text += json{{"step", s}, {"loss", 100 + s}}.dump() + "\n";
  const RunHistory history(run_folder(folder, "run", text));
  const Series loss = history.series("loss");
  EXPECT_EQ(loss.steps, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));  // what the cut left behind of 9 and 10 is no part of the run
  EXPECT_EQ(loss.values[5], 4.0 / 6);
  EXPECT_EQ(loss.values[6], 107);
  EXPECT_EQ(history.replaced_steps(), 4);
  EXPECT_EQ(history.evaluations("validation_loss").steps, (std::vector<double>{5}));
  EXPECT_CONTAINS(report_page(history), "recorded twice");
}

TEST(Report, DamagedLinesAndMissingFieldsAreNoError) {
  const TemporaryFolder folder;
  const std::string text = lines(3, 2) + "{\"step\":4,\"loss\":1.\n[1]\n{\"loss\":2}\n\n{\"step\":\"5\"}\n" + R"({"step":6,"loss":null,"grad_norm":"text","index_loss_of_layer":3,"seconds_of_part":[],"applied":false})" + "\n" +
                           "{\"step\":7,\"lo";
  const RunHistory history(run_folder(folder, "run", text, "not: [yaml"));
  EXPECT_EQ(history.damaged_lines(), 6);
  EXPECT_EQ(history.steps().size(), 4u);
  EXPECT_TRUE(std::isnan(history.series("loss").values[3]));
  EXPECT_EQ(history.series("loss").last(), 4.0 / 3);
  const std::string page = report_page(history);
  check_page(page, 20);
  EXPECT_CONTAINS(page, "Damaged lines of metrics.jsonl, left out: 6.");
  EXPECT_CONTAINS(page, "Not applied, since they were not finite or spikes: 1 of the steps.");
}

TEST(Report, NothingRecordedYet) {
  const TemporaryFolder folder;
  const std::string page = report_page(RunHistory(run_folder(folder, "run", "")));
  check_page(page, 0);
  EXPECT_CONTAINS(page, "No training step is recorded yet.");
}

TEST(Report, TextFromTheRunIsNeverMarkup) {
  const TemporaryFolder folder;
  const std::string evil = "</script><b onload=\"x\">&'";
  json line = step_line(2, 1);
  line["seconds_of_part"][evil] = 1;
  const std::string page = report_page(RunHistory(run_folder(folder, "<i>run&", line.dump() + "\n", "model:\n  config: \"" + evil + "\"\n")));
  const std::set<std::string> names = check_page(page, 19);
  EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(evil); }));
  EXPECT_FALSE(contains(page, "<b onload"));
  EXPECT_FALSE(contains(page, "<i>run"));
  EXPECT_CONTAINS(page, "&lt;/script&gt;&lt;b onload=&quot;x&quot;&gt;&amp;&#39;");
  EXPECT_CONTAINS(page, "<title>&lt;i&gt;run&amp;");
}

TEST(Report, TheProgramWritesThePageAndNamesWhatIsMissing) {
  const TemporaryFolder folder;
  const std::string program = std::string(HYSCALE_TOOLS) + "/hyscale-report", history = run_folder(folder, "run", lines(4, 2));
  const auto made = run({program, history});
  EXPECT_EQ(made.code, 0) << made.output;
  check_page(test::read_file(history + "/report.html"), 20);
  EXPECT_EQ(run({program, history, "-o", folder / "other.html"}).code, 0);
  EXPECT_EQ(test::read_file(history + "/report.html"), test::read_file(folder / "other.html"));
  const auto summary = run({program, history, "--summary"});
  EXPECT_CONTAINS(summary.output, "Step 4, 4,000 tokens, 8 s in steps.\n");
  const auto missing = run({program, folder / "nowhere"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_CONTAINS(missing.output, "nowhere/metrics.jsonl: does not exist; expected the folder of a run");
}

TEST(Report, NumbersAreShort) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(0.0003), "0.0003");
  EXPECT_EQ(short_number(1234), "1234");
  EXPECT_EQ(short_number(12345), "12.35k");
  EXPECT_EQ(short_number(2.5e9), "2.5G");
  EXPECT_EQ(short_number(NAN), "n/a");
}

}  // namespace
}  // namespace hyscale
