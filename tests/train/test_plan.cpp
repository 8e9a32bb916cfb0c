// --plan against what a run really takes.
#include "train/plan.h"

#include <regex>

#include "tests/train/tiny_run.h"
#include "train/setup.h"

namespace hyscale {
namespace {

using test::run;
using test::TinyRun;

TEST(Plan, CountsWhatTheStepTakes) {
  const TinyRun t;
  for (const char* recompute : {"none", "layer"}) {
    const Config c = read_config(t / "run.yaml", {std::string("train.recompute=") + recompute, "data.sequence_tokens=1024"});
    const Plan plan = make_plan(c);
    const auto model = make_model(c);
    model->parameters().allocate(Device{}, DType::f32);
    model->parameters().initialize(1, 0.02f);
    reset_peak(Device{});
    const size_t before = allocated_bytes(Device{});
    StepOptions options = step_options(c, Device{}, DType::f32);
    options.reserve = plan.step;
    Step step(*model, options);
    const HostSequence s = make_host_sequence(std::vector<int32_t>(1024, 1), std::vector<int32_t>(1024, 1), {0, 1024});
    StepTotals totals;
    totals.add(s, 0);
    step.begin(totals);
    step.micro_batch(s, true);
    EXPECT_EQ(plan.step.saved, step.memory().saved);
    EXPECT_EQ(plan.step.selections, step.memory().selections);
    EXPECT_NEAR(static_cast<double>(plan.step.scratch), static_cast<double>(step.memory().scratch), 0.05 * static_cast<double>(step.memory().scratch));
    const double predicted = static_cast<double>(plan.step.saved + plan.step.scratch + plan.step.selections + plan.step.inputs);
    EXPECT_NEAR(static_cast<double>(peak_bytes(Device{}) - before), predicted, 0.05 * predicted);
    EXPECT_EQ(plan.gradients, plan.weights - 2 * 256);  // all but the two router biases, which take 256 bytes each
  }
}

TEST(Plan, RecomputeLowersThePeak) {
  const TinyRun t;
  const auto saved = [&](const char* recompute) { return make_plan(read_config(t / "run.yaml", {std::string("train.recompute=") + recompute, "data.sequence_tokens=4096"})).step.saved; };
  EXPECT_LT(saved("layer"), saved("none") * 2 / 3);
}

// Two bytes more for every number of the streams: the embedding and the layers' outputs, and of the layer that is recomputed its output
// what lies between attention and FFN and MLA's latents. The gradient of the last output, in f32, no longer takes that of the normed one's memory.
TEST(Plan, CountsStreamsInF32) {
  const TinyRun t;
  const auto saved = [&](const char* dtype) {
    return make_plan(read_config(t / "run.yaml", {std::string("train.residual_dtype=") + dtype, "data.sequence_tokens=1024", "run.device=cuda", "plan.memory_bytes=1000000000"})).step.saved;
  };
  const nlohmann::json model = read_hf_config("tests/goldens/glm51/config.json");
  const auto size = [&](const char* key) { return model[key].get<size_t>(); };
  const size_t numbers = 1024 * size("hidden_size"), layers = size("num_hidden_layers"), latents = 1024 * (size("q_lora_rank") + size("kv_lora_rank") + size("qk_rope_head_dim"));
  EXPECT_EQ(saved("float32") - saved("activation"), numbers * (2 * (layers + 1) + 2 * 2 + 4) + 2 * latents);
}

TEST(Plan, TheProgramCountsGlm51AndSaysThatOneDeviceIsTooSmall) {
  const auto r = run({test::tool("hyscale-train"), "--config", "configs/plan-glm-5.1.yaml", "--plan"});
  EXPECT_EQ(r.code, 3);
  EXPECT_CONTAINS(r.output, "753,864,139,008 in 59,870 tensors");
  EXPECT_CONTAINS(r.output, "40,833,146,112 without the input embedding");
  EXPECT_CONTAINS(r.output, "DOES NOT FIT");
}

TEST(Plan, EveryConfigurationOfAClusterFitsAndThePageHasItsFigures) {
  const std::string page = test::read_file("docs/train_published_models.md");
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    const std::string name = entry.path().stem();
    if (!std::regex_search(name, std::regex("-h[0-9]+x[0-9]+$"))) continue;
    const std::string cluster = name.substr(name.rfind('-') + 1);
    const auto r = run({test::tool("hyscale-train"), "--config", entry.path(), "--plan", "--cluster", cluster});
    EXPECT_EQ(r.code, 0) << name << ": " << r.output;
    const auto figure = [&](const std::string& label) {
      std::smatch m;
      EXPECT_TRUE(std::regex_search(r.output, m, std::regex("\\n  " + label + " +([0-9.]+)"))) << name << ": " << r.output;
      return m[1].str();
    };
    const Config c = read_config(entry.path(), {}, Inputs::model);
    EXPECT_CONTAINS(page, concat("[", name, "](../configs/", name, ".yaml) | ", c.parallel.data, " x ", c.parallel.context, ", ", c.parallel.expert, " | ",
                                 figure("total"), " | ", figure("available"), " | ", figure("step"), " |"));
    ++found;
  }
  EXPECT_EQ(found, 12);
}

TEST(Plan, ASequenceThatTheHostCannotHoldIsRefused) {
  EXPECT_NO_THROW(check_host_memory(1000, 28000));
  EXPECT_CONTAINS(test::error_of([] { check_host_memory(size_t{1} << 30, size_t{24} << 30); }),
                  "data.sequence_tokens: 1073741824 tokens take 28672 MiB of host memory, whatever the device; this machine has 24576 MiB, enough for 920350134");
}

TEST(Plan, ASmallModelFits) {
  const TinyRun t;
  const auto r = run(t.command({"--plan"}));
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_CONTAINS(r.output, "fits");
  EXPECT_FALSE(std::filesystem::exists(t / "run"));
}

TEST(Plan, FlopsCountTheSelectorTwiceWithoutReplay) {
  const TinyRun t;
  const ForwardFlops f{10, 20, 40};
  EXPECT_EQ(train_flops(f, read_config(t / "run.yaml")), 3 * 30 + 40);
  EXPECT_EQ(train_flops(f, read_config(t / "run.yaml", {"train.selection_replay=false"})), 3 * 30 + 80);
  EXPECT_EQ(train_flops(f, read_config(t / "run.yaml", {"train.selection_replay=false", "train.recompute=none"})), 3 * 30 + 40);
}

}  // namespace
}  // namespace hyscale
