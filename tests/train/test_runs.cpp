// Whole runs of the programs: resume, signals, kills, replay, spikes.
#include <cmath>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "core/memory.h"
#include "tests/train/tiny_run.h"

namespace hyscale {
namespace {

using test::Child;
using test::run;
using test::TinyRun;
namespace fs = std::filesystem;

TEST(Runs, TenStepsEqualFiveKillResumeFiveBitForBit) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("straight")).code, 0);
  {
    Child child(t.into("cut"), t / "log");
    while (child.running() && list_checkpoints(t / "cut").empty()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    child.send(SIGKILL);
    child.wait();
  }
  // Whatever the kill left: from step 5 again, were it slow; lines of steps beyond are written once all the same.
  fs::remove_all(t / "cut/step-00000010");
  ASSERT_EQ(fs::exists(t / "cut/step-00000005"), true);
  const auto resumed = run(t.into("cut", {"--resume", "latest"}));
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_CONTAINS(resumed.output, "at step 5");
  EXPECT_TRUE(t.state("straight", 10) == t.state("cut", 10));
  std::vector<int64_t> steps;
  for (const auto& line : t.metrics("cut"))
    if (line.contains("loss")) steps.push_back(line["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  const auto a = t.metrics("straight"), b = t.metrics("cut");
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].value("loss", 0.0), b[i].value("loss", 0.0));
}

TEST(Runs, KillAtRandomMomentsOfSavingAlwaysLeavesACompleteCheckpoint) {
  const TinyRun t;
  const Rng rng(17);
  ASSERT_EQ(run(t.into("kills", {"--set", "train.steps=1"})).code, 0);
  for (uint64_t round = 0; round < 20; ++round) {
    Child child(t.into("kills", {"--resume", "latest", "--set", "train.steps=100000", "--set", "checkpoint.every=1", "--set", "train.micro_batches=1", "--set",
                                 "data.sequence_tokens=8"}), t / "log");
    const int64_t before = list_checkpoints(t / "kills").back().first;
    // A save takes most of a step here, so a random moment after the first save lies inside one as often as not.
    while (child.running() && list_checkpoints(t / "kills").back().first == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(rng.below(round, 30000)));
    child.send(SIGKILL);
    EXPECT_EQ(child.wait(), -SIGKILL) << child.output();
    const std::string latest = find_checkpoint(t / "kills", "latest");
    ASSERT_FALSE(latest.empty());
    EXPECT_NO_THROW(verify_checkpoint(latest, true));
    EXPECT_GE(list_checkpoints(t / "kills").back().first, before);
  }
}

TEST(Runs, ASignalSavesAndExits75AndResumingEndsTheSame) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("straight", {"--set", "train.steps=40"})).code, 0);
  Child child(t.into("stopped", {"--set", "train.steps=40", "--set", "checkpoint.every=0"}), t / "log");
  while (child.running() && !test::contains(child.output(), "step 3/")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  child.send(SIGTERM);
  EXPECT_EQ(child.wait(), 75) << child.output();
  EXPECT_CONTAINS(child.output(), "stopped by SIGTERM after step");
  const auto resumed = run(t.into("stopped", {"--set", "train.steps=40", "--resume", "latest"}));
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_TRUE(t.state("straight", 40) == t.state("stopped", 40));
}

TEST(Runs, SelectorRunsOncePerLayerAndMicroBatchAndReplayChangesNothing) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("replay", {"--set", "train.steps=3"})).code, 0);
  ASSERT_EQ(run(t.into("again", {"--set", "train.steps=3", "--set", "train.selection_replay=false"})).code, 0);
  ASSERT_EQ(run(t.into("none", {"--set", "train.steps=3", "--set", "train.recompute=none"})).code, 0);
  EXPECT_EQ(t.metrics("replay")[0]["selector_calls"], 3 * 2);
  EXPECT_EQ(t.metrics("again")[0]["selector_calls"], 2 * 3 * 2);
  EXPECT_EQ(t.metrics("none")[0]["selector_calls"], 3 * 2);
  EXPECT_TRUE(t.state("replay", 3) == t.state("again", 3));
  EXPECT_TRUE(t.state("replay", 3) == t.state("none", 3));
}

TEST(Runs, AnIndexerInE4m3SelectsAgainWhatItSelected) {
  const TinyRun t;
  const std::vector<std::string> e4m3{"--set", "train.steps=3", "--set", "model.indexer_dtype=e4m3"};
  std::vector<std::string> twice = e4m3;
  twice.insert(twice.end(), {"--set", "train.selection_replay=false"});
  const auto once = run(t.into("e4m3", e4m3));
  ASSERT_EQ(once.code, 0) << once.output;
  ASSERT_EQ(run(t.into("again", twice)).code, 0);
  ASSERT_EQ(run(t.into("f32", {"--set", "train.steps=3"})).code, 0);
  EXPECT_TRUE(t.state("e4m3", 3) == t.state("again", 3));
  EXPECT_FALSE(t.state("e4m3", 3) == t.state("f32", 3));  // some choices fall otherwise
  EXPECT_NEAR(t.metrics("e4m3").back()["validation_loss"].get<double>(), t.metrics("f32").back()["validation_loss"].get<double>(), 0.05);
  const auto refused = run(t.into("v4", {"--set", "model.config=tests/goldens/deepseek_v4/config.json", "--set", "model.indexer_dtype=e4m3"}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_CONTAINS(refused.output, "only the indexer of \"glm_moe_dsa\" selects in e4m3");
}

TEST(Runs, WarmupLeavesTheTrunkAloneAndHandsItsWeightsOver) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("start", {"--set", "train.steps=1", "--set", "optimizer.lr=0"})).code, 0);
  const std::string weights = t / "start/step-00000001/model";
  const auto warm = run(t.into("warm", {"--set", "model.weights=" + weights, "--set", "model.stage=warmup", "--set", "train.recompute=none", "--set", "train.steps=4"}));
  ASSERT_EQ(warm.code, 0) << warm.output;
  const SafetensorsReader before(weights + "/model.safetensors"), after(t / "warm/step-00000004/model/model.safetensors");
  for (const auto& [name, info] : before.tensors()) {
    const bool indexer = test::contains(name, ".indexer.");
    EXPECT_EQ(before.read_f32(name) == after.read_f32(name), !indexer) << name;
  }
  const auto sparse = run(t.into("sparse", {"--set", "model.weights=" + (t / "warm/step-00000004/model"), "--set", "train.steps=2"}));
  EXPECT_EQ(sparse.code, 0) << sparse.output;
  const auto mixed = run(t.into("warm", {"--resume", "latest"}));
  EXPECT_EQ(mixed.code, 2);
  EXPECT_CONTAINS(mixed.output, "was trained in stage warmup, model.stage is sparse");
}

TEST(Runs, IndexCoefficientZeroLeavesIndexersBitForBit) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("a", {"--set", "train.steps=1", "--set", "optimizer.lr=0"})).code, 0);
  const std::string weights = t / "a/step-00000001/model";
  ASSERT_EQ(run(t.into("b", {"--set", "model.weights=" + weights, "--set", "train.steps=3", "--set", "loss.index_coefficient=0", "--set", "optimizer.weight_decay=0"})).code, 0);
  const SafetensorsReader before(weights + "/model.safetensors"), after(t / "b/step-00000003/model/model.safetensors");
  for (const auto& [name, info] : before.tensors()) {
    if (test::contains(name, ".indexer.")) {
      EXPECT_TRUE(before.read_f32(name) == after.read_f32(name)) << name;
    }
  }
}

TEST(Runs, GroupsHaveTheirOwnLearningRates) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("a", {"--set", "train.steps=1", "--set", "optimizer.lr=0"})).code, 0);
  const std::string weights = t / "a/step-00000001/model";
  // A rate of 0 keeps a role as it is, weight decay included, beside others that train.
  const auto r = run(t.into("b", {"--set", "model.weights=" + weights, "--set", "train.steps=2", "--set", "optimizer.name=muon", "--set",
                                  "optimizer.groups={experts: {lr_scale: 0}, vectors: {lr_scale: 0}, router: {lr_scale: 0}, indexer: {lr: 1e-2}, head: {name: muon}}"}));
  ASSERT_EQ(r.code, 0) << r.output;
  const SafetensorsReader before(weights + "/model.safetensors"), after(t / "b/step-00000002/model/model.safetensors");
  for (const auto& [name, info] : before.tensors()) {
    if (test::contains(name, "e_score_correction_bias")) continue;  // follows expert loads
    const bool indexer = test::contains(name, ".indexer."), still = !indexer && (test::contains(name, ".experts.") || test::contains(name, "norm") || test::contains(name, "mlp.gate.weight"));
    EXPECT_EQ(before.read_f32(name) == after.read_f32(name), still) << name;
  }
  const SafetensorsReader state(t / "b/step-00000002/optimizer/rank-00000.safetensors");
  EXPECT_TRUE(state.tensors().count("lm_head.weight@0.momentum"));
  EXPECT_TRUE(state.tensors().count("model.embed_tokens.weight@0.v"));
}

TEST(Runs, AGroupThatNamesNothingIsRefused) {
  const TinyRun t;
  nlohmann::json config = nlohmann::json::parse(test::read_file("tests/goldens/glm51/config.json"));
  config["mlp_layer_types"] = std::vector<std::string>(config["num_hidden_layers"].get<size_t>(), "dense");
  config["first_k_dense_replace"] = config["num_hidden_layers"];
  test::write_file(t / "dense.json", config.dump());
  const auto r = run(t.into("a", {"--set", "model.config=" + (t / "dense.json"), "--set", "optimizer.groups={experts: {lr_scale: 2}}"}));
  EXPECT_EQ(r.code, 2);
  EXPECT_CONTAINS(r.output, "optimizer.groups: the model has no parameters of experts; it has dense, embedding, head, indexer, vectors");
}

TEST(Runs, NonFiniteStepsAreSkippedReportedAndEndTheRun) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("a", {"--set", "train.steps=1"})).code, 0);
  // A weight that is not finite: every loss is NaN.
  const std::string model = t / "a/step-00000001/model/model.safetensors";
  const SafetensorsReader reader(model);
  std::string bytes = test::read_file(model);
  const float nan = NAN;
  bytes.replace(static_cast<size_t>(reader.info("model.norm.weight").begin), 4, reinterpret_cast<const char*>(&nan), 4);
  test::write_file(t / "bad/model.safetensors", bytes);
  fs::copy_file(t / "a/step-00000001/model/config.json", t / "bad/config.json");
  const auto r = run(t.into("b", {"--set", "model.weights=" + (t / "bad"), "--set", "train.nonfinite_limit=2"}));
  EXPECT_EQ(r.code, 4);
  EXPECT_CONTAINS(r.output, "2 steps in a row were not finite");
  const auto report = nlohmann::json::parse(test::read_file(t / "b/not-finite-step-00000001.json"));
  EXPECT_EQ(report["sequences"].size(), 2u);
  EXPECT_EQ(report["sequences"][1]["sequence"], 1);
  EXPECT_EQ(report["sequences"][0]["tokens"].size(), 96u);
  EXPECT_EQ(t.metrics("b").size(), 2u);
  EXPECT_EQ(t.metrics("b")[0]["applied"], false);
}

TEST(Runs, EvaluationOfTheExportedModelAgreesWithTheTrainers) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("a")).code, 0);
  const auto exported = run({test::tool("hyscale-checkpoint"), "export", t / "a/latest", t / "exported"});
  ASSERT_EQ(exported.code, 0) << exported.output;
  ASSERT_EQ(run(t.into("b", {"--set", "model.weights=" + (t / "exported"), "--set", "train.steps=1", "--set", "optimizer.lr=0", "--set",
                          "loss.router_bias_update_rate=0"})).code, 0);
  EXPECT_EQ(t.metrics("a").back()["validation_loss"], t.metrics("b").back()["validation_loss"]);
}

TEST(Runs, SkippedSequencesAreReplacedByTheNext) {
  const TinyRun t;
  test::write_file(t / "skip", "2-3\n");
  ASSERT_EQ(run(t.into("a", {"--set", "train.steps=3"})).code, 0);
  ASSERT_EQ(run(t.into("b", {"--set", "train.steps=2", "--set", "data.skip=" + (t / "skip")})).code, 0);
  const auto cursor = [&](const std::string& path) { return nlohmann::json::parse(test::read_file(t / path + "/trainer.json"))["loader"]; };
  EXPECT_EQ(cursor("a/step-00000003"), cursor("b/step-00000002"));
  EXPECT_EQ(t.metrics("a")[0]["loss"], t.metrics("b")[0]["loss"]);
  EXPECT_EQ(t.metrics("a")[2]["labels"], t.metrics("b")[1]["labels"]);
}

TEST(Runs, ProgramsSayTheirVersion) {
  for (const std::string name : {"hyscale-train", "hyscale-data", "hyscale-checkpoint"}) {
    const auto r = run({test::tool(name), "--version"});
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(r.output, name + " " HYSCALE_VERSION ", " + (built_with_cuda() ? "CUDA and CPU" : "CPU alone") + "\n");
  }
}

TEST(Runs, CheckpointToolInspectsAndVerifies) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("a")).code, 0);
  const auto verified = run({test::tool("hyscale-checkpoint"), "verify", t / "a/latest"});
  EXPECT_EQ(verified.code, 0) << verified.output;
  const auto inspected = run({test::tool("hyscale-checkpoint"), "inspect", t / "a/latest"});
  EXPECT_CONTAINS(inspected.output, "238880 elements");
  EXPECT_CONTAINS(inspected.output, "step 10, 1920 tokens, 10 updates, stage sparse");
  for (const std::string command : {"inspect", "verify"}) {
    const auto run_folder = run({test::tool("hyscale-checkpoint"), command, t / "a"});
    EXPECT_EQ(run_folder.code, 2);
    EXPECT_CONTAINS(run_folder.output, command == "verify" ? "expected RUN/latest or RUN/step-N" : "is the folder of a run; expected one of its checkpoints, such as " + (t / "a/step-00000010"));
  }
  test::write_file(t / "file", "");
  EXPECT_CONTAINS(run({test::tool("hyscale-checkpoint"), "export", t / "a/latest", t / "file"}).output, "file: exists and is no empty folder; expected a new one");
  EXPECT_CONTAINS(run({test::tool("hyscale-checkpoint"), "export", t / "b/latest", t / "c"}).output, "b/latest: is no folder; expected a checkpoint or a Hugging Face model folder");
  const auto full = run({test::tool("hyscale-checkpoint"), "export", t / "a/latest", t / "c"}, 100000);
  EXPECT_EQ(full.code, 2);
  EXPECT_CONTAINS(full.output, "c.partial/model.safetensors: cannot write: File too large");
  EXPECT_FALSE(std::filesystem::exists(t / "c.partial"));
  const auto nowhere = run({test::tool("hyscale-checkpoint"), "export", t / "a/latest", "/proc/nowhere"});
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_CONTAINS(nowhere.output, "/proc/nowhere.partial: cannot create the folder: ");
  std::string damaged = test::read_file(t / "a/step-00000010/optimizer/rank-00000.safetensors");
  damaged[damaged.size() / 2] ^= 1;
  test::write_file(t / "a/step-00000010/optimizer/rank-00000.safetensors", damaged);
  const auto refused = run({test::tool("hyscale-checkpoint"), "verify", t / "a/latest"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_CONTAINS(refused.output, "its contents differ");
}

}  // namespace
}  // namespace hyscale
