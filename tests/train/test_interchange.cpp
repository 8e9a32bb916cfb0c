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

// The golden's folder as a release in FP8 has it: one matrix in E4M3, every value 1, its scales 0.25; and a config.json that says so.
void write_in_fp8(const std::string& golden, const std::string& matrix, const std::string& folder) {
  const HfFolderReader source(golden);
  std::vector<SafetensorsWriter::Entry> entries;
  std::vector<std::vector<char>> contents;
  for (const std::string& name : source.names()) {
    const SafetensorInfo& info = source.reader(name).info(name);
    const bool quantised = name == matrix;
    entries.push_back({name, quantised ? "F8_E4M3" : info.dtype, info.shape});
    contents.emplace_back(static_cast<size_t>(quantised ? info.elements() : info.end - info.begin), 0x38);
    if (!quantised) source.reader(name).read(name, contents.back().data());
  }
  const std::vector<float> scales(static_cast<size_t>((source.reader(matrix).info(matrix).shape[0] + 127) / 128), 0.25f);
  entries.push_back({matrix + "_scale_inv", "F32", {static_cast<int64_t>(scales.size()), 1}});
  const char* bytes = reinterpret_cast<const char*>(scales.data());
  contents.emplace_back(bytes, bytes + scales.size() * 4);
  fs::create_directories(folder);
  SafetensorsWriter writer(folder + "/model.safetensors", entries);
  for (const std::vector<char>& c : contents) writer.append(c.data(), c.size());
  writer.finish();
  nlohmann::json config = read_hf_config(golden + "/config.json");
  config["dtype"] = "bfloat16";
  config["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
  test::write_file(folder + "/config.json", config.dump());
}

TEST(Interchange, AReleaseInFp8TrainsResumesAndIsExportedWithoutIt) {
  for (const auto& [golden, matrix] : {std::pair{"glm51", "model.layers.0.self_attn.q_a_proj.weight"}, {"deepseek_v4", "model.layers.0.attn.wq_a.weight"}}) {
    const TinyRun t;
    write_in_fp8(std::string("tests/goldens/") + golden, matrix, t / "release");
    const std::vector<std::string> words{"--set", "model.config=" + (t / "release"), "--set", "model.weights=" + (t / "release"), "--set", "optimizer.lr=0", "--set", "data.validation=[]"};
    const auto in_steps = [&](const std::string& steps, std::vector<std::string> more) {
      more.insert(more.end(), words.begin(), words.end());
      more.insert(more.end(), {"--set", "train.steps=" + steps});
      return run(t.into("run", more));
    };
    const auto begun = in_steps("1", {});
    ASSERT_EQ(begun.code, 0) << golden << ": " << begun.output;
    const auto resumed = in_steps("2", {"--resume", "latest"});
    ASSERT_EQ(resumed.code, 0) << golden << ": " << resumed.output;
    const HfFolderReader saved(t / "run/latest/model");
    for (float value : saved.reader(matrix).read_f32(matrix)) ASSERT_EQ(value, 0.25f);
    EXPECT_FALSE(read_hf_config(t / "run/latest/model/config.json").contains("quantization_config"));
    const auto exported = run({test::tool("hyscale-checkpoint"), "export", t / "release", t / "exported"});
    ASSERT_EQ(exported.code, 0) << golden << ": " << exported.output;
    EXPECT_EQ(HfFolderReader(t / "exported").reader(matrix).info(matrix).dtype, "BF16");
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
