// Reported faults that take whole runs to show; see docs/reports.md.
#include "checkpoint/safetensors.h"
#include "tests/train/tiny_run.h"

namespace hyscale {
namespace {

using test::run;
using test::TinyRun;

std::vector<nlohmann::json> step_lines(const TinyRun& t, const std::string& directory) {
  std::vector<nlohmann::json> lines = t.metrics(directory);
  std::erase_if(lines, [](const nlohmann::json& line) { return !line.contains("loss"); });
  return lines;
}

TEST(Reports, U03_TokensLabelsAndFlopsAreThoseOfTheDataInEveryLayout) {
  const TinyRun t;
  const std::vector<std::string> same{"--set", "train.steps=3", "--set", "data.sequence_tokens=640"};
  const auto with = [&](std::initializer_list<const char*> layout) {
    std::vector<std::string> all = same;
    for (const char* key : layout) all.insert(all.end(), {"--set", key});
    return all;
  };
  ASSERT_EQ(run(t.into("one", same)).code, 0);
  ASSERT_EQ(run(t.with_ranks(2, "cp2", with({"parallel.context=2"}))).code, 0);
  ASSERT_EQ(run(t.with_ranks(4, "dp2cp2", with({"parallel.data=2", "parallel.context=2"}))).code, 0);
  const auto one = step_lines(t, "one");
  for (const char* layout : {"one", "cp2", "dp2cp2"}) {
    const auto lines = step_lines(t, layout);
    ASSERT_EQ(lines.size(), one.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i]["tokens"], 1280 * (i + 1)) << layout;
      EXPECT_EQ(lines[i]["labels"], one[i]["labels"]) << layout;
      EXPECT_EQ(lines[i]["model_flops"], one[i]["model_flops"]) << layout;
      EXPECT_NEAR(lines[i]["tokens_per_second"].get<double>() * lines[i]["seconds"].get<double>(), 1280, 1e-6) << layout;
    }
  }
}

TEST(Reports, U13_CoefficientZeroTrainsWithContextRanksToo) {
  const TinyRun t;
  const std::vector<std::string> longer{"--set", "data.sequence_tokens=640"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), longer.begin(), longer.end());
    return more;
  };
  ASSERT_EQ(run(t.into("a", with({"--set", "train.steps=1", "--set", "optimizer.lr=0"}))).code, 0);
  const std::string weights = t / "a/step-00000001/model";
  const auto trained = run(t.with_ranks(2, "b", with({"--set", "model.weights=" + weights, "--set", "train.steps=2", "--set", "loss.index_coefficient=0", "--set", "optimizer.weight_decay=0", "--set", "parallel.context=2"})));
  ASSERT_EQ(trained.code, 0) << trained.output;
  const SafetensorsReader before(weights + "/model.safetensors"), after(t / "b/step-00000002/model/model.safetensors");
  int indexers = 0;
  for (const auto& [name, info] : before.tensors()) {
    const bool same = before.read_f32(name) == after.read_f32(name), indexer = test::contains(name, ".indexer.");
    EXPECT_TRUE(same || !indexer) << name;
    indexers += indexer;
  }
  EXPECT_GT(indexers, 0);
  EXPECT_FALSE(before.read_f32("lm_head.weight") == after.read_f32("lm_head.weight"));
}

TEST(Reports, U17_ResumingTakesNoMoreMemoryThanTraining) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("straight")).code, 0);
  ASSERT_EQ(run(t.into("cut", {"--set", "train.steps=5"})).code, 0);
  ASSERT_EQ(run(t.into("cut", {"--resume", "latest"})).code, 0);
  const auto straight = step_lines(t, "straight"), cut = step_lines(t, "cut");
  ASSERT_EQ(cut.size(), 10u);
  EXPECT_LE(cut[5]["peak_bytes"].get<double>(), 1.01 * straight[4]["peak_bytes"].get<double>());
}

}  // namespace
}  // namespace hyscale
