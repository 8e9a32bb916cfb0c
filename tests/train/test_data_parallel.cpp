// Data parallelism over MPI ranks on the CPU: the ranks of a step give what one rank gives.
#include <cmath>

#include "checkpoint/safetensors.h"
#include "tests/train/tiny_run.h"

namespace hyscale {
namespace {

using test::run;
using test::TinyRun;

using test::model_difference;

// Of the matrices that Muon trains.
double muon_difference(const std::string& a, const std::string& b) {
  return model_difference(a, b, [](const std::string& name) {
    return name.ends_with("_proj.weight") || name.ends_with("wq_b.weight") || name.ends_with("wk.weight") || name.ends_with("kv_a_proj_with_mqa.weight");
  });
}

TEST(DataParallel, RanksGiveTheLossesAndWeightsOfOneRank) {
  const TinyRun t;
  const std::vector<std::string> four{"--set", "train.micro_batches=4", "--set", "train.steps=6"};
  const auto one = run(t.into("one", four));
  ASSERT_EQ(one.code, 0) << one.output;
  for (int ranks : {2, 4}) {
    const std::string directory = "ranks" + std::to_string(ranks);
    const auto many = run(t.under_mpirun(ranks, directory, four));
    ASSERT_EQ(many.code, 0) << many.output;
    const auto a = t.metrics("one"), b = t.metrics(directory);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i)
      for (const char* key : {"loss", "index_loss", "balance_loss", "grad_norm", "validation_loss"})
        EXPECT_NEAR(a[i].value(key, 0.0), b[i].value(key, 0.0), 1e-5 * std::abs(a[i].value(key, 0.0))) << key << " of line " << i;
    EXPECT_EQ(b[0]["tokens"], 4 * 96);
    EXPECT_EQ(b[0]["selector_calls"], 3 * 4 / ranks);
    // AdamW turns rounding of tiny gradients into steps of its own size, so weights differ more than losses.
    EXPECT_LT(model_difference(t / "one/step-00000006", t / (directory + "/step-00000006")), 1e-2);
  }
}

TEST(DataParallel, MuonGivesTheWeightsOfOneRankAndResumesOnAnyNumber) {
  const TinyRun t;
  const std::vector<std::string> muon{"--set", "optimizer.name=muon", "--set", "train.micro_batches=4", "--set", "schedule.kind=constant", "--set", "data.validation=[]", "--set", "checkpoint.every=1"};
  const auto upto = [&](int steps, std::vector<std::string> more = {}) {
    std::vector<std::string> all = muon;
    all.insert(all.end(), {"--set", "train.steps=" + std::to_string(steps)});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  ASSERT_EQ(run(t.into("one", upto(3))).code, 0);
  const auto two = run(t.under_mpirun(2, "two", upto(1)));
  ASSERT_EQ(two.code, 0) << two.output;
  // The gradients of two ranks are those of one up to the order of their sums; AdamW's first step of a tiny one may differ more.
  EXPECT_LT(muon_difference(t / "one/step-00000001", t / "two/step-00000001"), 1e-6);
  const auto four = run(t.under_mpirun(4, "two", upto(2, {"--resume", "latest", "--set", "parallel.sharding=weights", "--set", "parallel.expert=2"})));
  ASSERT_EQ(four.code, 0) << four.output;
  const auto resumed = run(t.into("two", upto(3, {"--resume", "latest"})));
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_LT(muon_difference(t / "one/step-00000003", t / "two/step-00000003"), 1e-4);
  const auto adamw = run(t.into("two", {"--set", "train.micro_batches=4", "--set", "train.steps=4", "--resume", "latest"}));
  EXPECT_EQ(adamw.code, 2);
  EXPECT_CONTAINS(adamw.output, "a run goes on with the optimizer (AdamW here) that each parameter began with");
}

TEST(DataParallel, AnotherNumberOfRanksContinuesTheSameRun) {
  const TinyRun t;
  const std::vector<std::string> four{"--set", "train.micro_batches=4", "--set", "train.steps=10"};
  ASSERT_EQ(run(t.into("straight", four)).code, 0);
  ASSERT_EQ(run(t.under_mpirun(2, "cut", {"--set", "train.micro_batches=4", "--set", "train.steps=5", "--set", "optimizer.lr=1e-3"})).code, 0);
  const auto resumed = run(t.into("cut", {"--set", "train.micro_batches=4", "--set", "train.steps=10", "--resume", "latest"}));
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  // The first half ran with its own schedule, so what must agree is the data and where the run stands.
  EXPECT_EQ(t.metrics("straight").back()["step"], t.metrics("cut").back()["step"]);
  EXPECT_EQ(t.metrics("straight")[9]["labels"], t.metrics("cut")[10]["labels"]);
}

TEST(DataParallel, RanksShareTheOptimizerState) {
  const TinyRun t;
  const auto two = run(t.under_mpirun(2, "two", {"--set", "train.steps=2"}));
  ASSERT_EQ(two.code, 0) << two.output;
  const std::string folder = t / "two/step-00000002/optimizer";
  const SafetensorsReader a(folder + "/rank-00000.safetensors"), b(folder + "/rank-00001.safetensors");
  int64_t in_a = 0, in_b = 0;
  for (const auto& [name, info] : a.tensors()) {
    in_a += info.elements();
    EXPECT_EQ(b.tensors().count(name), 0u) << name;  // names say where a piece begins
  }
  for (const auto& [name, info] : b.tensors()) in_b += info.elements();
  EXPECT_EQ(in_a + in_b, 3 * (238880 - 16));  // all but the two router biases, three numbers each
  EXPECT_NEAR(static_cast<double>(in_a), static_cast<double>(in_b), 0.02 * static_cast<double>(in_b));
  // One rank takes over the state of two: the next step is that of two ranks that go on, up to rounding.
  std::filesystem::copy(t / "two", t / "copy", std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
  ASSERT_EQ(run(t.into("copy", {"--set", "train.steps=3", "--resume", "latest"})).code, 0);
  ASSERT_EQ(run(t.under_mpirun(2, "two", {"--set", "train.steps=3", "--resume", "latest"})).code, 0);
  EXPECT_LT(model_difference(t / "two/step-00000003", t / "copy/step-00000003"), 1e-3);
}

TEST(DataParallel, ARankThatFailsEndsTheJob) {
  const TinyRun t;
  const auto wrong = run(t.under_mpirun(2, "a", {"--set", "data.train=[{path: /nowhere/x}]"}));
  EXPECT_NE(wrong.code, 0);
  EXPECT_CONTAINS(wrong.output, "/nowhere/x.bin: cannot open");
  const auto lonely = run(t.into("b", {"--set", "parallel.data=2"}));
  EXPECT_EQ(lonely.code, 2);
  EXPECT_CONTAINS(lonely.output, "parallel: data 2 x context 1 = 2 ranks, but the job has 1; start it with mpirun");
}

}  // namespace
}  // namespace hyscale
