#include "checkpoint/checkpoint.h"

#include "models/registry.h"
#include "tests/support/processes.h"
#include "train/weights.h"

namespace hyscale {
namespace {

using test::error_of;
using test::TemporaryFolder;
namespace fs = std::filesystem;

std::string save(const std::string& directory, int64_t step, const std::string& text = "data") {
  CheckpointWriter w(directory, step);
  test::write_file(w.path() + "/model/x", text);
  return w.commit();
}

TEST(Checkpoint, CommitMakesItVisibleAndLatest) {
  const TemporaryFolder f;
  EXPECT_EQ(find_checkpoint(f.path(), "latest"), "");
  save(f.path(), 5);
  const std::string path = save(f.path(), 10);
  EXPECT_EQ(find_checkpoint(f.path(), "latest"), path);
  EXPECT_EQ(fs::canonical(f / "latest"), fs::canonical(path));
  verify_checkpoint(path, true);
}

TEST(Checkpoint, AnInterruptedSaveLeavesTheOldOneAndIsSweptUp) {
  const TemporaryFolder f;
  const std::string old = save(f.path(), 5);
  {
    CheckpointWriter w(f.path(), 10);
    test::write_file(w.path() + "/model/x", "half");
  }
  EXPECT_EQ(find_checkpoint(f.path(), "latest"), old);
  fs::create_directories(f / ".partial-step-00000007/model");  // a process that was killed
  save(f.path(), 12);
  EXPECT_FALSE(fs::exists(f / ".partial-step-00000007"));
}

TEST(Checkpoint, KeepsTheNewestAndMilestones) {
  const TemporaryFolder f;
  for (int64_t step : {10, 20, 30, 40, 50}) save(f.path(), step);
  remove_old_checkpoints(f.path(), 2, 20);
  std::vector<int64_t> steps;
  for (const auto& [step, path] : list_checkpoints(f.path())) steps.push_back(step);
  EXPECT_EQ(steps, (std::vector<int64_t>{20, 40, 50}));
}

TEST(Checkpoint, DamageIsNamed) {
  const TemporaryFolder f;
  const std::string path = save(f.path(), 5);
  test::write_file(path + "/model/x", "dato");
  verify_checkpoint(path, false);
  EXPECT_CONTAINS(error_of([&] { verify_checkpoint(path, true); }), "model/x: its contents differ from the manifest's xxh3");
  test::write_file(path + "/model/x", "dat");
  EXPECT_CONTAINS(error_of([&] { verify_checkpoint(path, false); }), "model/x: has 3 bytes, the manifest says 4");
  fs::remove(path + "/model/x");
  EXPECT_CONTAINS(error_of([&] { verify_checkpoint(path, false); }), "model/x: is missing");
  EXPECT_CONTAINS(error_of([&] { find_checkpoint(f.path(), f / "nothing"); }), "nothing: is no complete checkpoint");
}

TEST(Checkpoint, ManifestsThatNameOtherThingsThanItsFilesAreRefused) {
  const TemporaryFolder f;
  const std::string path = save(f.path(), 5);
  const auto error_with = [&](const std::string& files) {
    test::write_file(path + "/MANIFEST.json", R"({"format": 1, "files": )" + files + "}");
    return error_of([&] { verify_checkpoint(path, true); });
  };
  for (const std::string name : {"", "/etc/passwd", "../x", "model/../../x"})
    EXPECT_CONTAINS(error_with("{\"" + name + "\": {\"bytes\": 4}}"), "MANIFEST.json: names \"" + name + "\", outside the checkpoint");
  EXPECT_CONTAINS(error_with(R"({"model/x": 4})"), "MANIFEST.json: \"model/x\": expected a JSON object");
  EXPECT_CONTAINS(error_with(R"({"model/x": {"bytes": "4"}})"), "\"bytes\" is \"4\"; expected an integer");
  EXPECT_CONTAINS(error_with(R"({"model/x": {"bytes": 4}})"), "\"xxh3\" is missing");
  EXPECT_CONTAINS(error_with("[]"), "MANIFEST.json: has no \"files\"; the checkpoint is damaged");
  EXPECT_CONTAINS(error_with("{"), "MANIFEST.json: is not valid JSON");
}

TEST(Checkpoint, FoldersThatOnlyLookLikeStepsAreNone) {
  const TemporaryFolder f;
  for (const char* name : {"step-", "step-x", "step-1x", "step-99999999999999999999"}) test::write_file(f / name + "/MANIFEST.json", "{}");
  EXPECT_TRUE(list_checkpoints(f.path()).empty());
}

// A folder whose index names `file` as the place of tensor "a"; one.safetensors and two.safetensors hold `in_one` and `in_two`.
std::string folder_error(const std::string& index, const std::string& in_one, const std::string& in_two) {
  const TemporaryFolder f;
  const float value = 1;
  for (const auto& [file, tensor] : {std::pair("one", in_one), std::pair("two", in_two)}) {
    SafetensorsWriter w(f / file + ".safetensors", {{tensor, "F32", {1}}});
    w.append(&value, 4);
    w.finish();
  }
  test::write_file(f / "model.safetensors.index.json", index);
  return error_of([&] { HfFolderReader r(f.path()); });
}

TEST(HfFolder, IndexesThatLeaveTheFolderOrDisagreeAreRefused) {
  const std::string good = R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})";
  EXPECT_EQ(folder_error(good, "a", "b"), "accepted");
  EXPECT_CONTAINS(folder_error(good, "b", "a"), "\"a\" should be in one.safetensors but is not");
  EXPECT_CONTAINS(folder_error(good, "a", "a"), "two.safetensors: tensor \"a\" is also in ");
  EXPECT_CONTAINS(folder_error(R"({"weight_map": {"a": "missing.safetensors"}})", "a", "b"), "missing.safetensors: cannot open");
  for (const std::string name : {"", "../one.safetensors", "/etc/passwd", "..", "x/one.safetensors", ".hidden"})
    EXPECT_CONTAINS(folder_error("{\"weight_map\": {\"a\": \"" + name + "\"}}", "a", "b"), "is \"" + name + "\"; expected a file of this folder");
  EXPECT_CONTAINS(folder_error(R"({"weight_map": {"a": 3}})", "a", "b"), "weight_map of \"a\" is 3; expected a file name");
  EXPECT_CONTAINS(folder_error("[]", "a", "b"), "has no \"weight_map\" object");
  EXPECT_CONTAINS(folder_error("{", "a", "b"), "model.safetensors.index.json: is not valid JSON");
}

TEST(HfFolder, ExportOfAnImportIsTheSameFile) {
  const TemporaryFolder f;
  for (const std::string name : {"glm51", "glm52_shared"}) {
    const std::string from = "tests/goldens/" + name, to = f / name;
    const auto model = make_model(read_hf_config(from + "/config.json"), from, {});
    model->parameters().allocate(Device{}, DType::f32);
    load_weights(model->parameters(), HfFolderReader(from));
    ProcessGroups alone = make_single_process_group();
    WriteQueue queue(true);
    save_weights(*model, alone, to, "float32", queue, nullptr);
    queue.wait();
    finish_hf_folder(to, saved_hf_config(*model, "float32"));
    EXPECT_TRUE(test::read_file(from + "/model.safetensors") == test::read_file(to + "/model.safetensors")) << name;
    EXPECT_EQ(read_hf_config(from + "/config.json"), read_hf_config(to + "/config.json"));
  }
}

TEST(HfFolder, ShardsReadBackTheSame) {
  const TemporaryFolder f;
  // Two writers, as two ranks would be: three tensors and two, two to a shard.
  HfShardWriter one(f / "m", {{"t0", "F32", {3}}, {"t1", "F32", {3}}, {"t2", "F32", {3}}}, 30), two(f / "m", {{"t3", "F32", {3}}, {"t4", "F32", {3}}}, 30);
  ASSERT_EQ(one.num_shards() + two.num_shards(), 3);
  one.number(0, 3);
  two.number(2, 3);
  for (int i = 0; i < 5; ++i) {
    const float v[] = {static_cast<float>(i), 1, 2};
    (i < 3 ? one : two).append(v, sizeof v);
  }
  one.finish();
  two.finish();
  finish_hf_folder(f / "m", {{"a", 1}});
  EXPECT_TRUE(fs::exists(f / "m/model-00003-of-00003.safetensors"));
  const HfFolderReader r(f / "m");
  ASSERT_EQ(r.names().size(), 5u);
  EXPECT_EQ(r.reader("t4").read_f32("t4"), (std::vector<float>{4, 1, 2}));
  fs::remove(f / "m/model-00002-of-00003.safetensors");
  EXPECT_CONTAINS(error_of([&] { HfFolderReader again(f / "m"); }), "model-00002-of-00003.safetensors: cannot open");
  test::write_file(f / "m/model.safetensors.index.json", R"({"weight_map": {"t0": "../../etc/passwd"}})");
  EXPECT_CONTAINS(error_of([&] { HfFolderReader again(f / "m"); }), "expected a file of this folder");
}

TEST(HfFolder, WrongShapesMissingAndUnknownTensorsAreNamed) {
  const std::string golden = "tests/goldens/glm51";
  const auto load = [&](const char* key, int64_t value) {
    nlohmann::json c = read_hf_config(golden + "/config.json");
    c[key] = value;
    const auto model = make_model(c, golden, {});
    model->parameters().allocate(Device{}, DType::f32);
    return error_of([&] { load_weights(model->parameters(), HfFolderReader(golden)); });
  };
  EXPECT_CONTAINS(load("vocab_size", 161), "tensor \"model.embed_tokens.weight\" has shape [160, 64]; config.json asks for [161, 64]");
  EXPECT_CONTAINS(load("n_routed_experts", 9), "tensor \"model.layers.1.mlp.gate.weight\" has shape [8, 64]; config.json asks for [9, 64]");
  EXPECT_CONTAINS(load("n_routed_experts", 7), "is not part of the model that config.json describes");
}

TEST(HfFolder, AMissingTensorIsNamed) {
  const std::string golden = "tests/goldens/glm51";
  nlohmann::json c = read_hf_config(golden + "/config.json");
  c["num_nextn_predict_layers"] = 1;
  const auto model = make_model(c, golden, {.mtp = true});
  model->parameters().allocate(Device{}, DType::f32);
  EXPECT_CONTAINS(error_of([&] { load_weights(model->parameters(), HfFolderReader(golden)); }), "tests/goldens/glm51: has no tensor \"model.layers.3.");
}

TEST(HfFolder, Bfloat16KeepsTheRouterBiasInF32) {
  const TemporaryFolder f;
  const std::string from = "tests/goldens/glm51";
  const auto model = make_model(read_hf_config(from + "/config.json"), from, {});
  model->parameters().allocate(Device{}, DType::f32);
  load_weights(model->parameters(), HfFolderReader(from));
  ProcessGroups alone = make_single_process_group();
  WriteQueue queue(false);
  save_weights(*model, alone, f / "m", "bfloat16", queue, nullptr);
  finish_hf_folder(f / "m", saved_hf_config(*model, "bfloat16"));
  const HfFolderReader r(f / "m");
  EXPECT_EQ(r.reader("lm_head.weight").info("lm_head.weight").dtype, "BF16");
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  EXPECT_EQ(r.reader(bias).info(bias).dtype, "F32");
  EXPECT_EQ(read_hf_config(f / "m/config.json")["dtype"], "bfloat16");
}

}  // namespace
}  // namespace hyscale
