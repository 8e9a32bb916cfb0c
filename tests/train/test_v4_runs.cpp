// Whole runs of DeepSeek-V4: learning, resuming in another layout, files, the plan.
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_folder.h"
#include "tests/train/tiny_run.h"

namespace hyscale {
namespace {

using test::run;
using test::TinyRun;
namespace fs = std::filesystem;

std::vector<std::string> v4(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--set", "model.config=tests/goldens/deepseek_v4/config.json"});
  return more;
}

TEST(V4Runs, ResumingIsBitEqualAndCheckpointsHoldTheHashTables) {
  const TinyRun t;
  const auto straight = run(t.into("straight", v4({"--set", "train.selection_storage=host"})));
  ASSERT_EQ(straight.code, 0) << straight.output;
  ASSERT_EQ(run(t.into("cut", v4())).code, 0);
  fs::remove_all(t / "cut/step-00000010");
  const auto resumed = run(t.into("cut", v4({"--resume", "latest"})));
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_TRUE(t.state("straight", 10) == t.state("cut", 10));
  const HfFolderReader saved(t / "straight/step-00000010/model"), golden("tests/goldens/deepseek_v4");
  EXPECT_EQ(saved.names(), golden.names());
  const std::string table = "model.layers.0.ffn.gate.tid2eid";
  EXPECT_EQ(saved.reader(table).info(table).dtype, "I64");
}

// Two data ranks that share experts and weights, or two context ranks, go on from what one rank saved.
TEST(V4Runs, AnotherLayoutGoesOnAsOneRankDoes) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("one", v4({"--set", "schedule.kind=constant"}))).code, 0);
  const auto expected = t.metrics("one");
  for (const std::vector<std::string>& layout : {std::vector<std::string>{"--set", "parallel.data=2", "--set", "parallel.expert=2", "--set", "parallel.sharding=weights"},
                                                  {"--set", "parallel.context=2"}}) {
    const std::string name = layout.size() > 2 ? "data" : "context";
    fs::copy(t / "one", t / name, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    std::vector<std::string> more = v4({"--set", "schedule.kind=constant", "--resume", t / (name + "/step-00000005")});
    more.insert(more.end(), layout.begin(), layout.end());
    fs::remove_all(t / (name + "/step-00000010"));
    const auto resumed = run(t.with_ranks(2, name, more));
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    const auto lines = t.metrics(name);
    EXPECT_NEAR(lines.back()["validation_loss"].get<double>(), expected.back()["validation_loss"].get<double>(), 1e-4) << name;
  }
}

TEST(V4Runs, LearnsOneBatch) {
  const TinyRun t;
  const auto r = run(t.into("overfit", v4({"--set", "train.overfit_loss=4", "--set", "train.steps=120", "--set", "optimizer.lr=1e-2", "--set", "schedule.kind=constant"})));
  EXPECT_EQ(r.code, 0) << r.output;
}

TEST(V4Runs, TheProgramCountsV4Flash) {
  const auto r = run({test::tool("hyscale-train"), "--config", "configs/plan-deepseek-v4-flash.yaml", "--plan"});
  EXPECT_EQ(r.code, 3);
  EXPECT_CONTAINS(r.output, "290,944,616,402 in 35,020 tensors");
  EXPECT_CONTAINS(r.output, "13,270,101,591 without the input embedding");
}

}  // namespace
}  // namespace hyscale
