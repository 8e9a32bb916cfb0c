// Several stages in one run: what each trains, what goes over, and resuming anywhere.
#include "checkpoint/safetensors.h"
#include "tests/train/tiny_run.h"
#include "train/plan.h"

namespace hyscale {
namespace {

using test::run;
using test::TinyRun;

const std::vector<std::string> kStages{"--set", "train.stages=[{stage: warmup, steps: 3, lr: 1e-2, schedule: linear, min_lr: 1e-3}, {stage: sparse, steps: 4, lr: 1e-3, warmup_steps: 2}]",
                                       "--set", "train.steps=7", "--set", "optimizer.lr=3e-4", "--set", "checkpoint.every=1", "--set", "checkpoint.keep=10"};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string step_folder(int step) { return concat("/step-0000000", step); }

TEST(Stages, WarmupHandsOptimizerAndDataOverToSparse) {
  const TinyRun t;
  const auto r = run(t.into("a", kStages));
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_CONTAINS(r.output, "stage 1 of 2: warmup, 3 steps");
  EXPECT_CONTAINS(r.output, "stage 2 of 2: sparse, 4 steps");
  const SafetensorsReader one(t / "a/step-00000001/model/model.safetensors"), three(t / "a/step-00000003/model/model.safetensors"), seven(t / "a/step-00000007/model/model.safetensors");
  for (const auto& [name, info] : one.tensors()) {
    EXPECT_EQ(one.read_f32(name) == three.read_f32(name), !test::contains(name, ".indexer.")) << name;
    EXPECT_FALSE(three.read_f32(name) == seven.read_f32(name)) << name;
  }
  const SafetensorsReader before(t / "a/step-00000003/optimizer/rank-00000.safetensors"), after(t / "a/step-00000004/optimizer/rank-00000.safetensors");
  for (const auto& [name, info] : before.tensors()) EXPECT_CONTAINS(name, ".indexer.");
  EXPECT_GT(after.tensors().size(), before.tensors().size());
  // The second moment of an indexer goes on from the warm-up's: it has more in it than the last gradient left.
  const std::string moment = "model.layers.0.self_attn.indexer.wk.weight@0.v";
  const std::vector<float> v3 = before.read_f32(moment), v4 = after.read_f32(moment);
  for (size_t i = 0; i < v3.size(); ++i) EXPECT_GE(v4[i], 0.95f * v3[i] * 0.999f);
  const nlohmann::json trainer = nlohmann::json::parse(test::read_file(t / "a/step-00000007/trainer.json"));
  EXPECT_EQ(trainer["updates"], 7);
  EXPECT_EQ(trainer["trunk_updates"], 4);
  EXPECT_EQ(trainer["stage"], "sparse");
  std::vector<double> rates;
  std::vector<std::string> stages;
  for (const auto& line : t.metrics("a"))
    if (line.contains("loss")) rates.push_back(line["lr"]), stages.push_back(line["stage"]);
  const std::vector<double> expected{7e-3, 4e-3, 1e-3, 5e-4, 1e-3, 1e-3, 1e-3};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(rates.at(i), expected[i], 1e-9);
  EXPECT_EQ(stages, (std::vector<std::string>{"warmup", "warmup", "warmup", "sparse", "sparse", "sparse", "sparse"}));
}

TEST(Stages, AResumeInAnyStageAndAtTheHandOverEndsTheSame) {
  const TinyRun t;
  for (const std::vector<std::string>& optimizer : {std::vector<std::string>{}, {"--set", "optimizer.name=muon"}}) {
    const std::string name = optimizer.empty() ? "adamw" : "muon";
    ASSERT_EQ(run(t.into(name, kStages + optimizer)).code, 0);
    for (int step : {2, 3, 5}) {
      const std::string directory = concat(name, step);
      const auto resumed = run(t.into(directory, kStages + optimizer + std::vector<std::string>{"--resume", t / name + step_folder(step)}));
      ASSERT_EQ(resumed.code, 0) << resumed.output;
      EXPECT_TRUE(t.state(name, 7) == t.state(directory, 7)) << name << " from step " << step;
    }
  }
}

TEST(Stages, RanksHandOverAsOne) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("one", kStages)).code, 0);
  const auto two = run(t.under_mpirun(2, "two", kStages + std::vector<std::string>{"--set", "parallel.sharding=weights", "--set", "run.replica_check_every=2"}));
  ASSERT_EQ(two.code, 0) << two.output;
  EXPECT_LT(test::model_difference(t / "one/step-00000003", t / "two/step-00000003"), 1e-4);
  EXPECT_LT(test::model_difference(t / "one/step-00000007", t / "two/step-00000007"), 1e-2);  // as DataParallel.RanksGiveTheLossesAndWeightsOfOneRank
}

TEST(Stages, ARunOfOneStageGoesOnAsTheFirstOfSeveral) {
  const TinyRun t;
  const std::vector<std::string> alone{"--set", "model.stage=warmup", "--set", "train.recompute=none", "--set", "train.steps=3", "--set", "optimizer.lr=1e-2", "--set", "schedule.kind=linear",
                                       "--set", "schedule.min_lr=1e-3", "--set", "data.validation=[]"};
  ASSERT_EQ(run(t.into("a", alone)).code, 0);
  const auto more = run(t.into("a", kStages + std::vector<std::string>{"--resume", "latest"}));
  ASSERT_EQ(more.code, 0) << more.output;
  ASSERT_EQ(run(t.into("b", kStages)).code, 0);
  EXPECT_TRUE(t.state("a", 7) == t.state("b", 7));
  const auto wrong = run(t.into("a", {"--resume", t / "a/step-00000007", "--set", "train.stages=[{stage: warmup, steps: 9, lr: 1e-2}]", "--set", "train.steps=9", "--set", "optimizer.lr=3e-4", "--set",
                                      "train.recompute=none"}));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_CONTAINS(wrong.output, "was trained in stage sparse, train.stages at step 7 is warmup");
}

TEST(Stages, ThePlanTakesTheMostOfAnyStage) {
  const TinyRun t;
  const Plan both = make_plan(read_config(t / "run.yaml", {kStages[1], "train.steps=7", "optimizer.lr=3e-4"})), sparse = make_plan(read_config(t / "run.yaml")),
             warmup = make_plan(read_config(t / "run.yaml", {"model.stage=warmup", "train.recompute=none"}));
  EXPECT_EQ(both.optimizer, sparse.optimizer);
  EXPECT_LT(warmup.optimizer, sparse.optimizer);
  EXPECT_EQ(both.step.scratch, std::max(sparse.step.scratch, warmup.step.scratch));
}

}  // namespace
}  // namespace hyscale
