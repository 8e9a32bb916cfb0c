// Whole runs of Qwen3.8: what its files hold beyond parameters, and what the family refuses.
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_folder.h"
#include "tests/train/tiny_run.h"

namespace hyscale {
namespace {

using test::run;
using test::TinyRun;
namespace fs = std::filesystem;

std::vector<std::string> qwen(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--set", "model.config=tests/goldens/qwen_qsa_ple/config.json"});
  return more;
}

TEST(QwenRuns, ResumingIsBitEqualAndCheckpointsHoldTheHashConstants) {
  const TinyRun t;
  const auto straight = run(t.into("straight", qwen()));
  ASSERT_EQ(straight.code, 0) << straight.output;
  ASSERT_EQ(run(t.into("cut", qwen())).code, 0);
  fs::remove_all(t / "cut/step-00000010");
  const auto resumed = run(t.into("cut", qwen({"--resume", "latest"})));
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_TRUE(t.state("straight", 10) == t.state("cut", 10));
  const HfFolderReader saved(t / "straight/step-00000010/model"), golden("tests/goldens/qwen_qsa_ple");
  EXPECT_EQ(saved.names(), golden.names());
  for (const char* name : {"layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"}) {
    const std::string tensor = concat("model.layers.1.ple.ple_embedding.", name);
    EXPECT_EQ(saved.reader(tensor).read_i64(tensor), golden.reader(tensor).read_i64(tensor));
  }
}

class QwenRanks : public testing::TestWithParam<const char*> {};

TEST_P(QwenRanks, ShareSequencesOrTheirTokensAndExpertsAndWeights) {
  const TinyRun t;
  const std::vector<std::string> few = qwen({"--set", "train.steps=3", "--set", "schedule.kind=constant"});
  std::vector<std::string> shared = few;
  shared.insert(shared.end(), {"--set", concat("parallel.", GetParam(), "=2"), "--set", "parallel.expert=2", "--set", "parallel.sharding=weights"});
  ASSERT_EQ(run(t.into("one", few)).code, 0);
  const auto many = run(t.with_ranks(2, "many", shared));
  ASSERT_EQ(many.code, 0) << many.output;
  const auto a = t.metrics("one"), b = t.metrics("many");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    for (const char* key : {"loss", "index_loss", "balance_loss", "grad_norm"})
      if (a[i].contains(key)) {
        EXPECT_NEAR(b[i][key].get<double>(), a[i][key].get<double>(), 1e-3 * a[i][key].get<double>()) << key << " of line " << i;
      }
}

INSTANTIATE_TEST_SUITE_P(, QwenRanks, testing::Values("data", "context"), [](const auto& i) { return std::string(i.param); });

TEST(QwenRuns, PlansWithoutRunning) {
  const TinyRun t;
  const auto plan = run(t.command(qwen({"--plan", "--set", "parallel.context=2"})));
  EXPECT_EQ(plan.code, 0) << plan.output;
  EXPECT_FALSE(fs::exists(t / "run"));
}

TEST(QwenRuns, WarmupLeavesTheTrunkAloneAndHandsItsWeightsOver) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("start", qwen({"--set", "train.steps=1", "--set", "optimizer.lr=0"}))).code, 0);
  const std::string weights = t / "start/step-00000001/model";
  const auto warm = run(t.into("warm", qwen({"--set", "model.weights=" + weights, "--set", "model.stage=warmup", "--set", "train.recompute=none", "--set", "train.steps=4"})));
  ASSERT_EQ(warm.code, 0) << warm.output;
  const SafetensorsReader before(weights + "/model.safetensors"), after(t / "warm/step-00000004/model/model.safetensors");
  for (const auto& [name, info] : before.tensors())
    if (info.dtype != "I64") {
      EXPECT_EQ(before.read_f32(name) == after.read_f32(name), !test::contains(name, ".indexer.")) << name;
    }
  const auto sparse = run(t.into("sparse", qwen({"--set", "model.weights=" + (t / "warm/step-00000004/model"), "--set", "train.steps=2"})));
  EXPECT_EQ(sparse.code, 0) << sparse.output;
}

}  // namespace
}  // namespace hyscale
