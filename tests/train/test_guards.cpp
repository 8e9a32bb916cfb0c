// What watches over a run: spikes, the overfit check, equal replicas, stragglers.
#include "train/guard.h"

#include <cmath>

#include "tests/train/tiny_run.h"
#include "train/replica_check.h"
#include "train/stragglers.h"

namespace hyscale {
namespace {

using test::run;
using test::TinyRun;
using Words = std::vector<std::string>;

TEST(Guard, TheLimitIsAFactorOverTheMedianOfTheWindow) {
  Guard guard({.loss_factor = 2, .grad_norm_factor = 3, .window = 5, .min_steps = 3});
  EXPECT_TRUE(std::isinf(guard.limits().loss));
  for (double x : {1.0, 9.0, 2.0}) guard.remember({x, 10 * x, 0});
  EXPECT_EQ(guard.limits().loss, 2 * 2);
  EXPECT_EQ(guard.limits().norm, 3 * 20);
  EXPECT_TRUE(std::isinf(guard.limits().indexer_norm));  // 0 all along: there is nothing to compare with
  for (double x : {5.0, 5.0, 5.0}) guard.remember({x, x, x});
  EXPECT_EQ(guard.limits().loss, 2 * 5);  // of 9 2 5 5 5
  guard.forget();
  EXPECT_TRUE(std::isinf(guard.limits().loss));
}

TEST(Guard, WhatIsNotWatchedHasNoLimitAndTextsNameWhatIsAbove) {
  Guard guard({.loss_factor = 2, .window = 4, .min_steps = 1});
  guard.remember({1, 1, 1});
  const GuardedValues limits = guard.limits();
  EXPECT_TRUE(std::isinf(limits.norm) && std::isinf(limits.indexer_norm));
  EXPECT_EQ(spike_text({2, 100, 100}, limits), "");
  EXPECT_EQ(spike_text({2.5, 100, 100}, limits), "loss 2.5 above 2");
}

TEST(Guard, ItsStateIsAllThatItKnows) {
  const Config::Guard options{.loss_factor = 2, .grad_norm_factor = 2, .window = 4, .min_steps = 2};
  Guard a(options), b(options);
  for (double x : {0.1, 0.7, 1.0 / 3}) a.remember({x, 2 * x, 3 * x});
  b.restore(nlohmann::json::parse(a.state().dump()));
  for (double x : {0.2, 0.9}) {
    EXPECT_EQ(a.limits().loss, b.limits().loss);
    EXPECT_EQ(a.limits().indexer_norm, b.limits().indexer_norm);
    a.remember({x, x, x}), b.remember({x, x, x});
  }
  EXPECT_THROW(b.restore("none"), UserError);
}

// Losses of random text wander by a tenth of a percent, so a factor this small finds spikes.
const Words kTight{"--set", "guard.loss_factor=1.0005", "--set", "guard.min_steps=2", "--set", "guard.window=6", "--set", "guard.skip_limit=100", "--set", "train.steps=12", "--set", "checkpoint.every=1",
                   "--set", "checkpoint.keep=20"};

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(GuardedRun, ASpikeIsSkippedReportedAndJudgedTheSameAfterAResume) {
  const TinyRun t;
  const auto straight = run(t.into("a", kTight));
  ASSERT_EQ(straight.code, 0) << straight.output;
  std::vector<int64_t> spikes;
  for (const auto& line : t.metrics("a"))
    if (line.contains("spike")) {
      spikes.push_back(line["step"]);
      EXPECT_EQ(line["applied"], false);
      EXPECT_CONTAINS(line["spike"].get<std::string>(), "loss");
    }
  ASSERT_FALSE(spikes.empty());
  ASSERT_LT(spikes.size(), 9u);
  const auto report = nlohmann::json::parse(test::read_file(t / ("a/" + concat("spike-step-", spikes[0] < 10 ? "0000000" : "000000", spikes[0], ".json"))));
  EXPECT_EQ(report["sequences"].size(), 2u);
  const nlohmann::json trainer = nlohmann::json::parse(test::read_file(t / "a/step-00000012/trainer.json"));
  EXPECT_EQ(trainer["updates"], 12 - static_cast<int64_t>(spikes.size()));
  // From just before a spike: the window is full of what the straight run saw.
  const std::string from = concat(t / "a/step-", spikes.back() - 1 < 10 ? "0000000" : "000000", spikes.back() - 1);
  ASSERT_EQ(run(t.into("b", kTight + Words{"--resume", from})).code, 0);
  EXPECT_TRUE(t.state("a", 12) == t.state("b", 12));
}

TEST(GuardedRun, StopEndsTheRunAtTheFirstSpike) {
  const TinyRun t;
  const auto stopped = run(t.into("a", {"--set", "guard.loss_factor=1.0005", "--set", "guard.min_steps=2", "--set", "guard.window=6", "--set", "train.steps=12", "--set", "guard.action=stop"}));
  EXPECT_EQ(stopped.code, 5) << stopped.output;
  EXPECT_CONTAINS(stopped.output, "a spike (guard.action stop) (loss");
  EXPECT_EQ(t.metrics("a").back()["applied"], false);
}

TEST(GuardedRun, GradientNormsAreWatchedInWarmupToo) {
  const TinyRun t;
  const auto r = run(t.into("a", {"--set", "guard.grad_norm_factor=1.000001", "--set", "guard.min_steps=1", "--set", "guard.window=1", "--set", "guard.skip_limit=2", "--set", "model.stage=warmup", "--set",
                                  "train.recompute=none", "--set", "optimizer.lr=0"}));
  EXPECT_CONTAINS(r.output, "indexer_grad_norm");
}

TEST(OverfitCheck, EndsWhenTheLossIsReachedAndFailsWhenItIsNot) {
  const TinyRun t;
  const Words learn{"--set", "train.overfit_loss=3", "--set", "optimizer.lr=1e-2", "--set", "schedule.kind=constant", "--set", "checkpoint.every=3"};
  const auto learned = run(t.into("a", learn + Words{"--set", "train.steps=200"}));
  EXPECT_EQ(learned.code, 0) << learned.output;
  EXPECT_CONTAINS(learned.output, "overfit check: loss");
  const auto lines = t.metrics("a");
  EXPECT_LE(lines[lines.size() - 2]["loss"], 3.0);
  EXPECT_EQ(lines[0]["labels"], lines[1]["labels"]);
  const auto missed = run(t.into("b", learn + Words{"--set", "train.steps=4"}));
  EXPECT_EQ(missed.code, 6) << missed.output;
  EXPECT_CONTAINS(missed.output, "one batch was not learned");
  // A resumed check trains on the same batch.
  ASSERT_EQ(run(t.into("c", learn + Words{"--set", "train.steps=4", "--resume", t / "b/step-00000003"})).code, 6);
  EXPECT_TRUE(t.state("b", 4) == t.state("c", 4));
}

TEST(ReplicaCheck, NamesTheRankWhoseCopyIsUnlikeTheOthers) {
  const ParallelSizes three{3, 1, 1}, four{4, 1, 2};
  EXPECT_FALSE(find_difference({{1, 2}, {1, 2}, {1, 2}}, {Cut::none, Cut::none}, three));
  const auto odd = find_difference({{1, 7}, {1, 2}, {1, 2}}, {Cut::none, Cut::none}, three);
  ASSERT_TRUE(odd);
  EXPECT_EQ(odd->rank, 0);
  EXPECT_EQ(odd->parameter, 1u);
  // Ranks 0 and 2 hold one half of the experts, 1 and 3 the other.
  EXPECT_FALSE(find_difference({{1, 5}, {1, 6}, {1, 5}, {1, 6}}, {Cut::none, Cut::experts}, four));
  const auto expert = find_difference({{1, 5}, {1, 6}, {1, 5}, {1, 8}}, {Cut::none, Cut::experts}, four);
  ASSERT_TRUE(expert);
  EXPECT_EQ(expert->rank, 3);
  // Every rank holds rows of its own.
  EXPECT_FALSE(find_difference({{1, 5}, {1, 6}, {1, 7}}, {Cut::none, Cut::ranks}, three));
}

TEST(Stragglers, ARankIsSlowAgainstTheMedian) {
  EXPECT_EQ(slow_rank({1, 1, 2.5, 1}, 2), 2);
  EXPECT_EQ(slow_rank({1, 1, 1.9, 1}, 2), -1);
  EXPECT_EQ(slow_rank({1, 5}, 2), 1);
  EXPECT_EQ(slow_rank({}, 2), -1);
}

TEST(Stragglers, MetricsHaveEveryRanksTimeAndNameTheSlowest) {
  const TinyRun t;
  // No two ranks take exactly as long, so the lowest factor names one.
  const auto r = run(t.under_mpirun(2, "a", {"--set", "train.steps=6", "--set", "run.straggler_factor=1.0001"}));
  ASSERT_EQ(r.code, 0) << r.output;
  bool named = false;
  for (const auto& line : t.metrics("a")) {
    if (!line.contains("loss")) continue;
    ASSERT_EQ(line["rank_compute_seconds"].size(), 2u);
    for (double seconds : line["rank_compute_seconds"]) EXPECT_TRUE(seconds > 0 && seconds < line["seconds"].get<double>() * 1.5) << line.dump();
    named = named || (line.contains("slowest_rank") && line.contains("slowest_host"));
  }
  EXPECT_TRUE(named);
  EXPECT_CONTAINS(r.output, "the median of the ranks is");
}

}  // namespace
}  // namespace hyscale
