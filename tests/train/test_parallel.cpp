// Runs over several ranks in every kind of layout: what they compute, send and hold, resuming in another layout, and failures.
#include "checkpoint/checkpoint.h"
#include "core/rng.h"
#include "tests/train/tiny_run.h"
#include "train/cluster.h"
#include "train/setup.h"

namespace hyscale {
namespace {

using test::model_difference;
using test::run;
using test::TinyRun;
using Words = std::vector<std::string>;

Words set(std::initializer_list<const char*> pairs) {
  Words out;
  for (const char* p : pairs) out.insert(out.end(), {"--set", p});
  return out;
}
Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Words kLonger = set({"data.sequence_tokens=640", "train.evaluate_sequences=3"});

TEST(Parallel, ACheckpointGoesOnInAnyLayout) {
  const TinyRun t;
  const auto steps = [](int n) { return Words{"--set", "train.steps=" + std::to_string(n)}; };
  const Words same = kLonger + set({"schedule.kind=constant"});
  ASSERT_EQ(run(t.into("one", same + steps(8))).code, 0);
  // Two steps in each layout, and the last two on one rank again.
  int upto = 0;
  for (const auto& [ranks, layout] : {std::pair{4, set({"parallel.context=2", "parallel.data=2", "parallel.expert=4", "parallel.sharding=weights"})},
                                      {2, set({"parallel.context=2", "parallel.expert=2"})}, {2, set({"parallel.data=2", "parallel.sharding=weights"})}}) {
    const auto part = run(t.with_ranks(ranks, "many", same + layout + steps(upto += 2) + Words{"--resume", "latest"}));
    ASSERT_EQ(part.code, 0) << part.output;
    if (upto == 2) {  // each expert rank wrote its experts, and a reader of the folder sees one model
      EXPECT_TRUE(std::filesystem::exists(t / "many/step-00000002/model/model-00004-of-00004.safetensors"));
      EXPECT_EQ(HfFolderReader(t / "many/step-00000002/model").names().size(), HfFolderReader("tests/goldens/glm51").names().size());
    }
  }
  const auto last = run(t.into("many", same + steps(8) + Words{"--resume", "latest"}));
  ASSERT_EQ(last.code, 0) << last.output;
  const auto loss_of = [&](const std::string& directory) {
    std::map<int64_t, nlohmann::json> by_step;
    for (const auto& line : t.metrics(directory))
      if (line.contains("loss")) by_step[line["step"]] = line;
    return by_step;
  };
  const auto one = loss_of("one"), many = loss_of("many");
  ASSERT_EQ(one.size(), 8u);
  ASSERT_EQ(many.size(), 8u);
  for (const auto& [step, line] : one)
    for (const char* key : {"loss", "index_loss", "balance_loss", "grad_norm"})
      EXPECT_NEAR(many.at(step)[key].get<double>(), line[key].get<double>(), 1e-3 * line[key].get<double>()) << key << " of step " << step;
  EXPECT_LT(model_difference(t / "one/step-00000008", t / "many/step-00000008"), 2e-2);
}

// What ranks send and hold is what the plan says.
TEST(Parallel, ThePlanKnowsWhatARankSendsAndHolds) {
  const TinyRun t;
  for (const auto& [ranks, layout] : {std::pair{2, set({"parallel.context=2"})}, {4, set({"parallel.context=4", "parallel.context_order=contiguous"})},
                                      {2, set({"parallel.data=2", "parallel.sharding=weights"})}, {4, set({"parallel.context=2", "parallel.data=2"})},
                                      {4, set({"parallel.data=4", "train.micro_batches=4", "optimizer.name=muon"})}}) {
    const Words words = set({"data.sequence_tokens=1024", "train.steps=2", "data.validation=[]", "checkpoint.every=0", "loss.balance_coefficient=0"}) + layout;  // balance: traffic by documents
    const auto job = run(t.with_ranks(ranks, "plan" + std::to_string(ranks) + layout.back(), words));
    ASSERT_EQ(job.code, 0) << job.output;
    Words overrides;
    for (size_t i = 1; i < words.size(); i += 2) overrides.push_back(words[i]);
    const Plan plan = make_plan(read_config(t / "run.yaml", overrides));
    const nlohmann::json line = t.metrics("plan" + std::to_string(ranks) + layout.back()).back();
    EXPECT_NEAR(line["sent_bytes"].get<double>(), static_cast<double>(plan.sent.parameters + plan.sent.context + plan.sent.experts), 1024) << layout.back();
    EXPECT_NEAR(line["peak_bytes"].get<double>(), static_cast<double>(plan.total_bytes()), 0.05 * static_cast<double>(plan.total_bytes())) << layout.back();
  }
}

TEST(Parallel, ContextTrafficIsTheFormulaUpTo1024Ranks) {
  const TinyRun t;
  const int64_t tokens = 16384, layers = 3, row = 32 + 8, index_key = 16, experts = 8, moe_layers = 2;  // tests/goldens/glm51
  for (int64_t ranks : {2, 3, 8, 64, 1024})
    for (const char* coefficient : {"0", "0.001"}) {
      const Config c = read_config(t / "run.yaml", {concat("parallel.context=", ranks), "train.micro_batches=1", concat("data.sequence_tokens=", tokens),
                                                    concat("loss.index_coefficient=", coefficient)});
      const bool teaches = std::string(coefficient) != "0";
      for (int rank : {0, static_cast<int>(ranks) - 1}) {
        const ContextLayout layout(tokens, static_cast<int>(ranks), ContextOrder::zigzag);
        // Forward: KV rows and index keys. Recompute: KV rows, and index keys for the index loss. Backward: the gradients of
        // both; the sums of every shard but the own pass through.
        const int64_t gathered = layout.ring_sent_rows(rank), reduced = tokens - layout.local_tokens(rank);
        int64_t expected = layers * 4 * (gathered * (row + index_key) + gathered * (row + (teaches ? index_key : 0)) + reduced * (row + (teaches ? index_key : 0)));
        expected += moe_layers * (2 * experts * 8 * (ranks - 1) / ranks);  // expert counts of the one document, for the balance loss
        EXPECT_EQ(make_plan(c, rank).sent.context, expected) << ranks << " ranks, rank " << rank;
      }
    }
}

TEST(Parallel, MemoryFallsWithContextRanks) {
  // GLM-5.1 at one million tokens: what a sequence takes, without weights and optimizer.
  const auto taken = [](int64_t context) {
    const StepMemory m = make_plan(read_config("configs/plan-glm-5.1.yaml", {concat("parallel.context=", context)})).step;
    return static_cast<double>(m.saved + m.scratch + m.selections + m.inputs);
  };
  const double eight = taken(8);
  for (int64_t context : {16, 32, 64}) EXPECT_NEAR(taken(context) * static_cast<double>(context) / (8 * eight), 1, 0.1) << context;
}

TEST(Parallel, GlmFitsOn512GpusAndTheEstimateComparesBothWays) {
  const Config c = read_config("configs/plan-glm-5.1-h20x512.yaml", {});
  const Plan plan = make_plan(c);
  EXPECT_TRUE(plan.fits());
  const Cluster cluster = parse_cluster("h20x512");
  const StepEstimate ours = estimate_step(plan, c, cluster, Selecting::flash_topk), table = estimate_step(plan, c, cluster, Selecting::table);
  EXPECT_GT(table.selector, 2 * ours.selector);
  EXPECT_EQ(table.products, ours.products);
  EXPECT_CONTAINS(cluster_text(plan, c, cluster), "Estimate for h20x512 (not measured there");
  EXPECT_THROW(estimate_step(plan, c, parse_cluster("h800x64"), Selecting::table), UserError);
  for (const char* wrong : {"h20", "a100x8", "h20x", "h20x0", "h20x8x", "x8"}) EXPECT_THROW(parse_cluster(wrong), UserError) << wrong;
}

TEST(Parallel, KillingARankAtAnyMomentLosesNothing) {
  const TinyRun t;
  const Words words = kLonger + set({"parallel.context=2", "parallel.expert=2", "checkpoint.every=1", "train.steps=100000", "data.validation=[]"}) + Words{"--resume", "latest"};
  const Rng rng(5);
  int64_t reached = 0;
  for (uint64_t i = 0; i < 10; ++i) {
    const std::string log = t / ("log" + std::to_string(i));
    test::Child job(t.with_ranks(2, "kills", words), log);
    const auto last_step = [&] { const auto all = list_checkpoints(t / "kills"); return all.empty() ? 0 : all.back().first; };
    const auto start = std::chrono::steady_clock::now();
    while (job.running() && last_step() <= reached && std::chrono::steady_clock::now() - start < std::chrono::minutes(1)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(rng.below(i, 300)));
    const auto killed = run({"/bin/sh", "-c", "pkill -KILL " + std::string(i % 2 ? "-n" : "-o") + " -f '^[^ ]*[h]yscale-train --config " + (t / "run.yaml") + "'"});
    EXPECT_EQ(killed.code, 0);
    EXPECT_NE(job.wait(), 0);
    const std::string latest = find_checkpoint(t / "kills", "latest");
    ASSERT_FALSE(latest.empty()) << test::read_file(log);
    EXPECT_NO_THROW(verify_checkpoint(latest, true));
    EXPECT_GT(last_step(), reached) << test::read_file(log);
    reached = last_step();
  }
  const auto resumed = run(t.into("kills", kLonger + set({"data.validation=[]"}) + Words{"--set", "train.steps=" + std::to_string(reached + 1), "--resume", "latest"}));
  EXPECT_EQ(resumed.code, 0) << resumed.output;
}

TEST(Parallel, AHangingRankEndsTheJobAndIsNamed) {
  const TinyRun t;
  test::Child job(t.with_ranks(2, "hang", kLonger + set({"parallel.context=2", "train.steps=100000", "run.hang_seconds=2"})), t / "log");
  while (job.running() && (!std::filesystem::exists(t / "hang/metrics.jsonl") || t.metrics("hang").size() < 2)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(run({"/bin/sh", "-c", "pkill -STOP -n -f '^[^ ]*[h]yscale-train --config " + (t / "run.yaml") + "'"}).code, 0);
  EXPECT_NE(job.wait(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1));
  const std::string log = test::read_file(t / "log");
  EXPECT_CONTAINS(log, "no progress for");
  // What the other rank waits in.
  const char* collectives[] = {"exchange", "all_reduce", "reduce_scatter", "all_gather", "barrier"};
  EXPECT_TRUE(std::any_of(std::begin(collectives), std::end(collectives), [&](const char* c) { return test::contains(log, c); })) << log;
  EXPECT_CONTAINS(log, host_name());
}

TEST(Parallel, ASignalToOneRankStopsAllInAnyPhase) {
  const TinyRun t;
  // Steps, evaluations and saves of comparable length; the signal comes at some moment of one of them.
  const Words words = kLonger + set({"parallel.context=2", "checkpoint.every=1", "train.evaluate_every=2", "train.steps=100000"}) + Words{"--resume", "latest"};
  const Rng rng(6);
  for (uint64_t i = 0; i < 4; ++i) {
    test::Child job(t.with_ranks(2, "stop", words), t / ("log" + std::to_string(i)));
    while (job.running() && !test::contains(job.output(), "validation loss")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(rng.below(i, 400)));
    EXPECT_EQ(run({"/bin/sh", "-c", "pkill -TERM -n -f '^[^ ]*[h]yscale-train --config " + (t / "run.yaml") + "'"}).code, 0);
    EXPECT_EQ(job.wait(), 75) << job.output();
    EXPECT_CONTAINS(job.output(), "stopped by SIGTERM after step");
    EXPECT_NO_THROW(verify_checkpoint(find_checkpoint(t / "stop", "latest"), true));
  }
}

TEST(Parallel, AnEvaluationIsCutShortBySignalAndByTime) {
  const TinyRun t;
  const Words words = set({"train.evaluate_sequences=20000", "train.evaluate_every=1", "train.steps=3", "checkpoint.every=0"});
  test::Child job(t.into("signal", words), t / "log");
  while (job.running() && !test::contains(job.output(), "step 1: evaluating 20000 sequences")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  job.send(SIGUSR1);
  EXPECT_EQ(job.wait(), 75) << job.output();
  EXPECT_CONTAINS(job.output(), "evaluation cut short by SIGUSR1");
  EXPECT_EQ(list_checkpoints(t / "signal").size(), 1u);
  const auto late = run(t.into("time", words + set({"run.time_limit_seconds=1"})));
  EXPECT_EQ(late.code, 75) << late.output;
  EXPECT_CONTAINS(late.output, "stopped by run.time_limit_seconds after step 1");
}

TEST(Parallel, RanksWithFewTokensAreNamed) {
  const TinyRun t;
  const auto few = run(t.with_ranks(2, "few", set({"parallel.context=2", "train.steps=1"})));
  EXPECT_EQ(few.code, 0);
  EXPECT_CONTAINS(few.output, "data.sequence_tokens 96 over parallel.context 2: ranks have from 0 to 96 tokens each; multiples of 512 divide evenly");
  const auto even = run(t.with_ranks(2, "even", set({"parallel.context=2", "train.steps=1", "data.sequence_tokens=512"})));
  EXPECT_EQ(even.code, 0);
  EXPECT_FALSE(test::contains(even.output, "tokens each")) << even.output;
}

TEST(Parallel, ExpertsThatDoNotDivideAreNamed) {
  const TinyRun t;
  const auto wrong = run(t.with_ranks(3, "a", set({"parallel.context=3", "parallel.expert=3"})));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_CONTAINS(wrong.output, "parallel.expert: 3 does not divide the 8 experts of the model");
}

}  // namespace
}  // namespace hyscale
