// What leaves a run is read by others: checkpoints by Python's safetensors, events by TensorBoard. Needs what scripts/setup.sh
// installs into .venv.
#include <sys/resource.h>

#include "models/registry.h"
#include "tests/train/tiny_run.h"
#include "train/event_file.h"
#include "train/weights.h"

namespace hyscale {
namespace {

using test::run;
using test::TinyRun;
namespace fs = std::filesystem;

// Skips the test where the packages are missing, which scripts/setup.sh --check says.
#define NEEDS_PYTHON() \
  if (!fs::exists(HYSCALE_PYTHON)) GTEST_SKIP() << HYSCALE_PYTHON << " is missing: run scripts/setup.sh"

TEST(Interchange, AnImportedModelAStepLaterIsReadBySafetensors) {
  NEEDS_PYTHON();
  for (const std::string golden : {"glm51", "deepseek_v4", "qwen_qsa"}) {
    const TinyRun t;
    const std::string from = "tests/goldens/" + golden;
    const auto trained = run(t.into("run", {"--set", "model.config=" + from + "/config.json", "--set", "model.weights=" + from, "--set", "train.steps=1", "--set", "optimizer.lr=1e-3", "--set",
                                            "schedule.kind=constant", "--set", "schedule.warmup_steps=0", "--set", "data.validation=[]"}));
    ASSERT_EQ(trained.code, 0) << golden << ": " << trained.output;
    const auto exported = run({test::tool("hyscale-checkpoint"), "export", t / "run/latest", t / "exported"});
    ASSERT_EQ(exported.code, 0) << exported.output;
    const auto read = run({HYSCALE_PYTHON, "tests/train/one_step_apart.py", from, t / "exported", "1.1e-3"});
    EXPECT_EQ(read.code, 0) << golden << ": " << read.output;
  }
}

TEST(Interchange, TensorBoardReadsTheEvents) {
  NEEDS_PYTHON();
  const test::TemporaryFolder folder;
  EventFile file(folder / "events", 1);
  for (int step = 1; step <= 3; ++step) file.write({{"step", step}, {"loss", 1.0 / step}});
  const auto r = run({HYSCALE_PYTHON, "-c",
                      "import sys\nfrom tensorboard.backend.event_processing.event_accumulator import EventAccumulator\na = EventAccumulator(sys.argv[1])\na.Reload()\n"
                      "print([(s.step, round(s.value, 3)) for s in a.Scalars('loss')])",
                      folder / "events"});
  EXPECT_CONTAINS(r.output, "[(1, 1.0), (2, 0.5), (3, 0.333)]");
}

// The exported folder is three times what the exporter takes.
TEST(Interchange, AnExportHoldsOneTensorAtATime) {
  const test::TemporaryFolder folder;
  nlohmann::json config = read_hf_config("tests/goldens/glm51/config.json");
  config["n_routed_experts"] = 512;
  config["moe_intermediate_size"] = 1024;
  {
    const std::unique_ptr<Model> model = make_model(config, "config.json", {});
    model->parameters().allocate(Device{}, DType::f32);
    ProcessGroups alone = make_single_process_group();
    WriteQueue at_once(false);
    save_weights(*model, alone, folder / "model", "float32", at_once, nullptr);
    finish_hf_folder(folder / "model", saved_hf_config(*model, "float32"));
  }
  const auto exported = run({test::tool("hyscale-checkpoint"), "export", folder / "model", folder / "exported"});
  ASSERT_EQ(exported.code, 0) << exported.output;
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder / "exported")) bytes += static_cast<int64_t>(entry.file_size());
  EXPECT_GT(bytes, int64_t{256} << 20);
  EXPECT_LT(used.ru_maxrss * 1024 * 3, bytes) << "the exporter took " << (used.ru_maxrss >> 10) << " MiB for " << (bytes >> 20) << " MiB";
  EXPECT_TRUE(test::read_file(folder / "model/model.safetensors") == test::read_file(folder / "exported/model.safetensors"));
}

}  // namespace
}  // namespace hyscale
