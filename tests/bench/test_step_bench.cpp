// hyscale-bench step, as a user calls it.
#include "tests/train/tiny_run.h"

namespace hyscale {
namespace {

using test::run;
using test::TinyRun;

TEST(StepBench, TimesAddUpAndMemoryIsAsPlanned) {
  const TinyRun t;
  const auto r = run({test::tool("hyscale-bench"), "step", "--config", t / "run.yaml", "--set", "data.sequence_tokens=512", "--unmeasured", "1", "--steps", "3", "--json", t / "step.json"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_CONTAINS(r.output, "losses are finite");
  EXPECT_CONTAINS(r.output, "backward layers");
  const nlohmann::json j = nlohmann::json::parse(test::read_file(t / "step.json"));
  EXPECT_EQ(j["device"], "cpu");
  EXPECT_EQ(j["tokens"], 1024);
  EXPECT_TRUE(j["mfu"].is_null());
  EXPECT_GT(j["model_flops"], 0);
  EXPECT_EQ(j["seconds_of_steps"].size(), 3u);
  EXPECT_NEAR(j["tokens_per_second"].get<double>() * j["seconds"].get<double>(), 1024, 1e-6);
  const double planned = j["planned_bytes"];
  EXPECT_NEAR(j["peak_bytes"].get<double>(), planned, 0.05 * planned);
  double mean = 0, phases = 0, parts = 0;
  for (const auto& s : j["seconds_of_steps"]) mean += s.get<double>() / 3;
  for (const auto& [name, s] : j["seconds_of_phase"].items()) phases += s.get<double>();
  for (const auto& [name, s] : j["seconds_of_part"].items()) parts += s.get<double>();
  EXPECT_NEAR(phases, mean, 0.1 * mean);
  EXPECT_NEAR(parts, phases, 1e-9);
}

TEST(StepBench, WhatItCannotRunIsNamed) {
  const TinyRun t;
  const auto ranks = run({test::tool("hyscale-bench"), "step", "--config", t / "run.yaml", "--set", "parallel.data=2"});
  EXPECT_EQ(ranks.code, 2);
  EXPECT_CONTAINS(ranks.output, "parallel.data 2 x parallel.context 1: the step benchmark runs one rank");
  const auto memory = run({test::tool("hyscale-bench"), "step", "--config", t / "run.yaml", "--set", "plan.memory_bytes=1000000"});
  EXPECT_EQ(memory.code, 2);
  EXPECT_CONTAINS(memory.output, "available are 0 MiB");
}

}  // namespace
}  // namespace hyscale
