// What a run records beside its losses: it changes no bit of them, is complete in every layout, and survives a resume.
#include "tests/train/tiny_run.h"

namespace hyscale {
namespace {

using test::run;
using test::TinyRun;

const std::vector<std::string> kEverything{"--set", "run.selection_health_every=2", "--set", "run.parts_every=2", "--set", "run.tensorboard=true", "--set", "train.steps=6"};

std::vector<std::string> everything(std::initializer_list<const char*> more) {
  std::vector<std::string> all = kEverything;
  for (const char* key : more) all.insert(all.end(), {"--set", key});
  return all;
}

// Of the steps that were measured: one entry per selecting layer, each a share.
void check_health(const std::vector<nlohmann::json>& lines, const std::string& what) {
  int measured = 0;
  for (const auto& line : lines) {
    if (!line.contains("loss")) continue;
    ASSERT_EQ(line.contains("selection_recall"), line["step"].get<int>() % 2 == 0) << what;
    if (!line.contains("selection_recall")) continue;
    ++measured;
    for (const char* key : {"selection_recall", "selection_shared_by_neighbours", "selection_shared_with_layer_below", "selection_tied"}) {
      ASSERT_EQ(line[key].size(), line["index_loss_of_layer"].size()) << what;
      for (size_t i = 0; i < line[key].size(); ++i) {
        const auto& v = line[key][i];
        EXPECT_EQ(v.is_null(), i == 0 && key == std::string("selection_shared_with_layer_below")) << what << " " << key;
        EXPECT_TRUE(v.is_null() || (v >= 0 && v <= 1.00001)) << what << " " << key << " " << v;
      }
      EXPECT_GT(line["selection_recall"][0], 0) << what;
    }
  }
  EXPECT_EQ(measured, 3) << what;
}

TEST(Observability, MeasuringChangesNoBitAndIsRecorded) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("plain", {"--set", "train.steps=6", "--set", "run.parts_every=0"})).code, 0);
  const auto measured = run(t.into("measured", everything({})));
  ASSERT_EQ(measured.code, 0) << measured.output;
  EXPECT_CONTAINS(measured.output, "MFU n/a");
  EXPECT_TRUE(t.state("plain", 6) == t.state("measured", 6));
  EXPECT_TRUE(t.metrics("measured")[0]["mfu"].is_null());
  EXPECT_GT(t.metrics("measured")[0]["model_flops"], 0);
  EXPECT_FALSE(t.metrics("plain")[1].contains("seconds_of_part"));
  const nlohmann::json timed = t.metrics("measured")[1];
  double parts = 0;
  for (const auto& [name, seconds] : timed["seconds_of_part"].items()) parts += seconds.get<double>();
  EXPECT_LE(parts, timed["seconds"].get<double>());
  EXPECT_GT(parts, 0.5 * timed["seconds"].get<double>());
  for (const char* part : {"selection", "attention", "index loss", "products", "experts", "head and loss", "optimizer"}) EXPECT_TRUE(timed["seconds_of_part"].contains(part)) << part;
  check_health(t.metrics("measured"), "one rank");
}

TEST(Observability, TheWarmUpStageSeesWhatItsIndexersWouldSelect) {
  const TinyRun t;
  const auto r = run(t.into("warm", everything({"model.stage=warmup", "train.recompute=none"})));
  ASSERT_EQ(r.code, 0) << r.output;
  check_health(t.metrics("warm"), "warm-up");
}

TEST(Observability, EveryLayoutMeasures) {
  const TinyRun t;
  for (const auto& [ranks, layout] : {std::pair{2, everything({"parallel.context=2", "data.sequence_tokens=640"})}, {4, everything({"parallel.context=2", "parallel.data=2", "data.sequence_tokens=640"})}}) {
    const std::string directory = "ranks" + std::to_string(ranks);
    const auto r = run(t.with_ranks(ranks, directory, layout));
    ASSERT_EQ(r.code, 0) << r.output;
    check_health(t.metrics(directory), directory);
    EXPECT_TRUE(t.metrics(directory)[1]["seconds_of_part"].contains("communication"));
  }
}

TEST(Observability, AResumedRunOpensAnotherEventFile) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("run", {"--set", "run.tensorboard=true", "--set", "train.steps=5"})).code, 0);
  ASSERT_EQ(run(t.into("run", {"--set", "run.tensorboard=true", "--resume", "latest"})).code, 0);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(t / "run/tensorboard")) {
    EXPECT_CONTAINS(entry.path().string(), "events.out.tfevents.");
    EXPECT_CONTAINS(test::read_file(entry.path()), "tokens_per_second");
    ++files;
  }
  EXPECT_EQ(files, 2);
}

TEST(Observability, CapturingWithoutAGpuIsRefused) {
  const TinyRun t;
  const auto named = run(t.into("a", {"--set", "run.profile_steps=3"}));
  EXPECT_EQ(named.code, 2);
  EXPECT_CONTAINS(named.output, "run.profile_steps: captures what runs on a GPU, and run.device is cpu");
  const auto found = run(t.into("a", {"--set", "run.profile_steps=3", "--set", "run.device=auto"}));
  if (found.code == 0) GTEST_SKIP() << "there is a GPU here";
  EXPECT_CONTAINS(found.output, "run.profile_steps: 3, but the run is on cpu");
  const auto alone = run(t.into("a", {"--set", "run.profile_start=3"}));
  EXPECT_CONTAINS(alone.output, "run.profile_start: acts only with run.profile_steps above 0");
}

}  // namespace
}  // namespace hyscale
