// What a user may do wrong: each stops with exit code 2, a message that names the place, and nothing lost.
#include <cstring>

#include "checkpoint/checkpoint.h"
#include "core/digest.h"
#include "tests/train/tiny_run.h"

namespace hyscale {
namespace {

using test::run;
using test::TinyRun;
namespace fs = std::filesystem;

void expect_refused(const test::Finished& r, const std::string& part) {
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_CONTAINS(r.output, part);
}

TEST(BadInput, MisspeltKeyAndWrongType) {
  const TinyRun t;
  expect_refused(run(t.command({"--set", "train.stepz=3"})), "train.stepz: unknown key; did you mean \"steps\"?");
  expect_refused(run(t.command({"--set", "optimizer.lr=fast"})), "optimizer.lr: \"fast\"; expected a number");
  expect_refused(run({test::tool("hyscale-train")}), "--config FILE is missing");
  expect_refused(run({test::tool("hyscale-train"), "--konfig", "x"}), "--konfig");
}

TEST(BadInput, OneRankSpeaksForAll) {
  const TinyRun t;
  for (const std::string mistake : {"train.stepz=3", "data.train=[/nowhere/x]", "parallel.data=5"}) {
    const std::string output = run(t.with_ranks(3, "a", {"--set", "train.micro_batches=30", "--set", "parallel.data=3", "--set", mistake})).output;
    const std::string part = mistake == "train.stepz=3" ? "unknown key" : mistake == "parallel.data=5" ? "but the job has 3 ranks" : "/nowhere/x.bin: cannot open";
    const size_t first = output.find(part);
    EXPECT_NE(first, std::string::npos) << output;
    EXPECT_EQ(output.find(part, first + 1), std::string::npos) << output;
  }
}

TEST(BadInput, MissingTruncatedAndCorruptData) {
  const TinyRun t;
  expect_refused(run(t.command({"--set", "data.train=[{path: /nowhere/x}]"})), "/nowhere/x.bin: cannot open: No such file");
  fs::resize_file(t / "data.bin", fs::file_size(t / "data.bin") - 1);
  expect_refused(run(t.command()), "data.bin: is truncated");
  std::string index = test::read_file(t / "data.idx");
  index[0] = 'X';
  test::write_file(t / "data.idx", index);
  expect_refused(run(t.command()), "data.idx: is no Megatron index");
}

TEST(BadInput, TokenBeyondTheVocabulary) {
  const TinyRun t;
  IndexedDatasetWriter w(t / "wide", 300);
  w.add_document({1, 2, 299});
  w.finish();
  expect_refused(run(t.command({"--set", "data.train=[{path: " + (t / "wide") + "}]"})),
                 "wide.bin: document 0, token 2: id 299 is not in the model's vocabulary of 160; was the data set built with another tokenizer?");
}

TEST(BadInput, EmptyDocumentsAreNoError) {
  const TinyRun t;
  IndexedDatasetWriter w(t / "gaps", 160);
  for (int i = 0; i < 20; ++i) w.add_document(i % 2 ? std::vector<int32_t>{} : std::vector<int32_t>{1, 2, 3});
  w.finish();
  const auto r = run(t.command({"--set", "data.train=[{path: " + (t / "gaps") + "}]", "--set", "train.steps=2"}));
  EXPECT_EQ(r.code, 0) << r.output;
}

TEST(BadInput, WeightsThatAreTruncatedOrOfAnotherShape) {
  const TinyRun t;
  fs::create_directories(t / "w");
  fs::copy_file("tests/goldens/glm51/config.json", t / "w/config.json");
  std::string weights = test::read_file("tests/goldens/glm51/model.safetensors");
  test::write_file(t / "w/model.safetensors", weights.substr(0, weights.size() - 100));
  expect_refused(run(t.command({"--set", "model.weights=" + (t / "w")})), "the file is truncated");
  test::write_file(t / "w/model.safetensors", weights);
  nlohmann::json config = nlohmann::json::parse(test::read_file(t / "w/config.json"));
  config["vocab_size"] = 200;
  test::write_file(t / "w/config.json", config.dump());
  expect_refused(run(t.command({"--set", "model.weights=" + (t / "w"), "--set", "model.config=" + (t / "w")})), "has shape [160, 64]; config.json asks for [200, 64]");
}

TEST(BadInput, ConfigJsonOfAnotherModel) {
  const TinyRun t;
  test::write_file(t / "llama.json", R"({"model_type": "llama", "hidden_size": 64})");
  expect_refused(run(t.command({"--set", "model.config=" + (t / "llama.json")})), "llama.json: \"model_type\" is \"llama\"; supported: \"glm_moe_dsa\"");
  expect_refused(run(t.command({"--set", "model.config=/nowhere.json"})), "/nowhere.json: cannot be read");
  test::write_file(t / "broken.json", "{");
  expect_refused(run(t.command({"--set", "model.config=" + (t / "broken.json")})), "broken.json: is not valid JSON");
}

TEST(BadInput, AFullDiskDuringASaveKeepsThePreviousCheckpoint) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("a")).code, 0);
  const std::string before = t.state("a", 10);
  // Weights still fit, the optimizer state does not.
  const auto r = run(t.into("a", {"--resume", "latest", "--set", "train.steps=12"}), 2000000);
  expect_refused(r, "optimizer/rank-00000.safetensors: cannot write: File too large");
  EXPECT_EQ(find_checkpoint(t / "a", "latest"), t / "a/step-00000010");
  EXPECT_NO_THROW(verify_checkpoint(t / "a/step-00000010", true));
  EXPECT_TRUE(t.state("a", 10) == before);
  for (const auto& entry : fs::directory_iterator(t / "a")) EXPECT_FALSE(entry.path().filename().string().starts_with(".partial")) << entry.path();
}

TEST(BadInput, ARunDirectoryWithCheckpointsIsNotOverwritten) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("a", {"--set", "train.steps=2"})).code, 0);
  expect_refused(run(t.into("a")), "already holds");
  expect_refused(run(t.into("a", {"--resume", "/nowhere"})), "/nowhere: is no complete checkpoint");
  expect_refused(run(t.into("a", {"--resume", "latest", "--set", "model.config=tests/goldens/glm52_shared/config.json"})), "was trained with \"indexer_types\"");
}

// With a manifest to match: what a checkpoint from someone else may hold.
TEST(BadInput, ACheckpointWithACounterOrPlaceThatIsNoneIsNotResumed) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("a")).code, 0);
  const std::string path = t / "a/step-00000010";
  const nlohmann::json good = nlohmann::json::parse(test::read_file(path + "/trainer.json"));
  const auto refused = [&](const char* pointer, const nlohmann::json& value, const std::string& part) {
    nlohmann::json changed = good, manifest = nlohmann::json::parse(test::read_file(path + "/MANIFEST.json"));
    changed[nlohmann::json::json_pointer(pointer)] = value;
    test::write_file(path + "/trainer.json", changed.dump());
    manifest["files"]["trainer.json"] = {{"bytes", changed.dump().size()}, {"xxh3", file_digest(path + "/trainer.json")}};
    test::write_file(path + "/MANIFEST.json", manifest.dump());
    expect_refused(run(t.into("a", {"--resume", "latest", "--set", "train.steps=12"})), part);
  };
  refused("/step", "ten", "trainer.json: \"step\" is \"ten\"; expected an integer");
  refused("/updates", INT64_MAX, "\"updates\" is 9223372036854775807");
  refused("/loader/sources/0/position", 40, "\"position\" is 40; expected an integer from 0 to 39");
  refused("/loader", nullptr, "trainer.json: \"loader\" is missing");
}

TEST(BadInput, ATensorOfMoreDimensionsThanAnyOfOursIsNamed) {
  const TinyRun t;
  fs::create_directories(t / "w");
  fs::copy_file("tests/goldens/glm51/config.json", t / "w/config.json");
  std::string weights = test::read_file("tests/goldens/glm51/model.safetensors");
  const std::string shape = "[160,64]", deep = "[160,2,2,2,2,2,2]";  // of the embedding
  const size_t at = weights.find(shape, weights.find("model.embed_tokens.weight"));
  ASSERT_NE(at, std::string::npos);
  uint64_t header;
  std::memcpy(&header, weights.data(), 8);
  weights.replace(at, shape.size(), deep);
  header += deep.size() - shape.size();
  std::memcpy(weights.data(), &header, 8);
  test::write_file(t / "w/model.safetensors", weights);
  expect_refused(run(t.command({"--set", "model.weights=" + (t / "w")})), "has shape [160, 2, 2, 2, 2, 2, 2]; config.json asks for [160, 64]");
}

TEST(BadInput, ADamagedCheckpointIsNotResumed) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("a")).code, 0);
  fs::resize_file(t / "a/step-00000010/model/model.safetensors", 1000);
  expect_refused(run(t.into("a", {"--resume", "latest", "--set", "train.steps=12"})), "model/model.safetensors: has 1000 bytes, the manifest says");
  EXPECT_EQ(run(t.into("a", {"--resume", t / "a/step-00000005", "--set", "train.steps=6"})).code, 0);
}

TEST(BadInput, AByteThatChangedInACheckpointIsFound) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("a")).code, 0);
  const std::vector<std::string> resume{"--resume", "latest", "--set", "train.steps=12"};
  for (const std::string file : {"model/model.safetensors", "optimizer/rank-00000.safetensors"}) {
    const std::string path = t / "a/step-00000010/" + file;
    const std::string good = test::read_file(path);
    std::string bad = good;
    bad[bad.size() / 2] ^= 1;
    test::write_file(path, bad);
    expect_refused(run(t.into("a", resume)), file + ": its contents differ from the manifest's xxh3; the checkpoint is damaged, an earlier one is resumed with --resume RUN/step-N");
    // Of two ranks, each looks at its share of the files.
    auto two = t.under_mpirun(2, "a", resume);
    EXPECT_CONTAINS(run(two).output, file + ": its contents differ");
    test::write_file(path, good);
  }
  EXPECT_EQ(run(t.into("a", resume)).code, 0);
}

TEST(BadInput, WhatAResumedRunHasOtherwiseIsSaidOrRefused) {
  const TinyRun t;
  ASSERT_EQ(run(t.into("a")).code, 0);
  const auto again = run(t.into("a", {"--resume", "latest"}));
  EXPECT_EQ(again.code, 0);
  EXPECT_CONTAINS(again.output, "train.steps is 10: nothing is left to train");
  EXPECT_FALSE(test::contains(again.output, "other than in the run that saved it")) << again.output;
  const auto changed = run(t.into("a", {"--resume", "latest", "--set", "train.steps=11", "--set", "optimizer.lr=2e-3", "--set", "data.sequence_tokens=64"}));
  EXPECT_EQ(changed.code, 0);
  EXPECT_CONTAINS(changed.output, "other than in the run that saved it: data.sequence_tokens 64 (was 96), optimizer.lr 0.002 (was 0.001), train.steps 11 (was 10)");
  expect_refused(run(t.into("a", {"--resume", "latest", "--set", "train.steps=12", "--set", "data.seed=7"})), "data.seed: is 7, the checkpoint's documents are in the order of 0; expected 0");
}

TEST(BadInput, ARunWhoseFolderIsRemovedGoesOnInANewOne) {
  const TinyRun t;
  test::Child child(t.into("a", {"--set", "train.steps=100000", "--set", "checkpoint.every=0"}), t / "log");
  while (child.running() && !test::contains(child.output(), "step 3/")) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  fs::rename(t / "a", t / "gone");
  child.send(SIGTERM);
  EXPECT_EQ(child.wait(), 75) << child.output();
  EXPECT_CONTAINS(child.output(), "a: metrics.jsonl is gone, as if the folder was moved or removed; it is begun anew after step");
  for (const std::string name : {"config.yaml", "metrics.jsonl", "run.lock", "latest/MANIFEST.json"}) EXPECT_TRUE(fs::exists(t / ("a/" + name))) << name;
}

TEST(BadInput, CudaWithoutADeviceIsNamed) {
  if (test::run({"/usr/bin/nvidia-smi", "-L"}).code == 0) GTEST_SKIP() << "a CUDA device is here";
  const TinyRun t;
  expect_refused(run(t.command({"--set", "run.device=cuda"})), "run.device: cuda, but");
}

TEST(BadInput, TopKBeyondWhatAQuerySeesIsNoError) {
  const TinyRun t;
  nlohmann::json config = nlohmann::json::parse(test::read_file("tests/goldens/glm51/config.json"));
  config["index_topk"] = 4096;
  test::write_file(t / "wide.json", config.dump());
  const auto r = run(t.command({"--set", "model.config=" + (t / "wide.json"), "--set", "train.steps=2"}));
  EXPECT_EQ(r.code, 0) << r.output;
}

}  // namespace
}  // namespace hyscale
