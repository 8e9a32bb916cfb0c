// Quantised checkpoints: formats, and a model loaded from a folder in DeepSeek's own form.
#include "checkpoint/dequantize.h"

#include "models/registry.h"
#include "tests/support/processes.h"
#include "tests/support/tensors.h"
#include "train/weights.h"

namespace hyscale {
namespace {

using Entry = SafetensorsWriter::Entry;

void write_folder(const std::string& folder, const std::vector<std::pair<Entry, std::vector<char>>>& tensors) {
  std::vector<Entry> entries;
  for (const auto& [entry, bytes] : tensors) entries.push_back(entry);
  SafetensorsWriter w(folder + "/model.safetensors", entries);
  for (const auto& [entry, bytes] : tensors) w.append(bytes.data(), bytes.size());
  w.finish();
}

template <typename T>
std::vector<char> bytes_of(const std::vector<T>& values) {
  const char* first = reinterpret_cast<const char*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}

TEST(Dequantize, E4m3AndE8m0AreWhatTheFormatsSay) {
  EXPECT_EQ(e4m3_to_float(0x00), 0);
  EXPECT_EQ(e4m3_to_float(0x38), 1);
  EXPECT_EQ(e4m3_to_float(0xB8), -1);
  EXPECT_EQ(e4m3_to_float(0x7E), 448);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6f);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7F)));
  EXPECT_EQ(e8m0_to_float(127), 1);
  EXPECT_EQ(e8m0_to_float(126), 0.5f);
  EXPECT_EQ(e8m0_to_float(0), 0x1p-127f);
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(Dequantize, Fp8BlocksOf128By128) {
  const test::TemporaryFolder folder;
  const int64_t rows = 130, columns = 129;  // four blocks, three of them cut
  std::vector<uint8_t> values(static_cast<size_t>(rows * columns), 0x38);
  values[0] = 0x40;  // 2
  write_folder(folder / "", {{{"a.weight", "F8_E4M3", {rows, columns}}, bytes_of(values)}, {{"a.scale", "F8_E8M0", {2, 2}}, bytes_of(std::vector<uint8_t>{127, 128, 129, 130})},
                             {{"b.weight", "F8_E4M3", {1, 2}}, bytes_of(std::vector<uint8_t>{0x38, 0xB8})}, {{"b.weight_scale_inv", "F32", {1, 1}}, bytes_of(std::vector<float>{0.75f})}});
  const HfFolderReader reader(folder / "");
  const std::vector<float> a = read_as_f32(reader, "a.weight", {rows, columns});
  EXPECT_EQ(a[0], 2);
  EXPECT_EQ(a[127], 1);
  EXPECT_EQ(a[128], 2);
  EXPECT_EQ(a[static_cast<size_t>(128 * columns)], 4);
  EXPECT_EQ(a.back(), 8);
  EXPECT_EQ(read_as_f32(reader, "b.weight", {1, 2}), (std::vector<float>{0.75f, -0.75f}));
}

TEST(Dequantize, Mxfp4TwoInAByteAlongTheInput) {
  const test::TemporaryFolder folder;
  std::vector<uint8_t> values(32, 0x22);  // 1, 1
  values[0] = 0xF1;                       // 0.5, -6
  values[16] = 0x70;                      // 0, 6 of the second block
  write_folder(folder / "", {{{"a.weight", "I8", {1, 32}}, bytes_of(values)}, {{"a.scale", "F8_E8M0", {1, 2}}, bytes_of(std::vector<uint8_t>{127, 129})}});
  const std::vector<float> a = read_as_f32(HfFolderReader(folder / ""), "a.weight", {1, 64});
  ASSERT_EQ(a.size(), 64u);
  EXPECT_EQ((std::vector<float>{a[0], a[1], a[2], a[32], a[33], a[34]}), (std::vector<float>{0.5f, -6, 1, 0, 24, 4}));
}

TEST(Dequantize, WhatIsWrongIsNamed) {
  const test::TemporaryFolder folder;
  write_folder(folder / "", {{{"a.weight", "F8_E4M3", {2, 2}}, bytes_of(std::vector<uint8_t>(4))}, {{"b.weight", "F8_E4M3", {2, 2}}, bytes_of(std::vector<uint8_t>(4))},
                             {{"b.scale", "F32", {2, 1}}, bytes_of(std::vector<float>(2))}, {{"c.weight", "I8", {2, 16}}, bytes_of(std::vector<uint8_t>(32))}});
  const HfFolderReader reader(folder / "");
  const auto message = [&](const std::string& name, const std::vector<int64_t>& shape) { return test::error_of([&] { read_as_f32(reader, name, shape); }); };
  EXPECT_CONTAINS(message("a.weight", {2, 2}), "\"a.weight\" is quantised (F8_E4M3) and has no scales");
  EXPECT_CONTAINS(message("b.weight", {2, 2}), "\"b.scale\" has shape [2, 1]; \"b.weight\" needs [1, 1]");
  EXPECT_CONTAINS(message("c.weight", {2, 64}), "has shape [2, 16]");
  EXPECT_CONTAINS(message("a.weight", {2, 3}), "config.json asks for [2, 3]");
}

// The golden's weights under DeepSeek's own names, one matrix as FP8 and an expert's as MXFP4.
TEST(Dequantize, ADeepSeekFolderInItsReleasedFormLoads) {
  const test::TemporaryFolder folder;
  const std::string golden = "tests/goldens/deepseek_v4";
  const auto model = make_model(read_hf_config(golden + "/config.json"), "config.json", {});
  ParameterStore& store = model->parameters();
  store.allocate(Device{}, DType::f32);
  const HfFolderReader source(golden);
  std::vector<std::pair<Entry, std::vector<char>>> tensors;
  for (const std::string& name : source.names()) {
    const SafetensorInfo& info = source.reader(name).info(name);
    const std::string released = store.released_name(name);
    if (name == "model.layers.0.attn.wq_a.weight") {
      tensors.push_back({{released, "F8_E4M3", info.shape}, bytes_of(std::vector<uint8_t>(static_cast<size_t>(info.elements()), 0x38))});
      tensors.push_back({{"layers.0.attn.wq_a.scale", "F8_E8M0", {1, 1}}, {static_cast<char>(125)}});
    } else if (name == "model.layers.1.ffn.experts.3.w1.weight") {
      tensors.push_back({{released, "I8", {info.shape[0], info.shape[1] / 2}}, bytes_of(std::vector<uint8_t>(static_cast<size_t>(info.elements() / 2), 0x24))});
      tensors.push_back({{"layers.1.ffn.experts.3.w1.scale", "F8_E8M0", {info.shape[0], info.shape[1] / 32}}, std::vector<char>(static_cast<size_t>(info.elements() / 32), 126)});
    } else {
      std::vector<char> bytes(static_cast<size_t>(info.end - info.begin));
      source.reader(name).read(name, bytes.data());
      tensors.push_back({{released, info.dtype, info.shape}, bytes});
    }
  }
  write_folder(folder / "", tensors);
  load_weights(store, HfFolderReader(folder / ""));
  const Tensor wq_a = store.find("model.layers.0.attn.wq_a.weight")->value;
  EXPECT_EQ(wq_a.f32()[5], 0.25f);
  const Parameter& experts = *store.find("model.layers.1.ffn.experts.gate_up_proj");
  for (const HfTensor& piece : experts.hf)
    if (piece.name == "model.layers.1.ffn.experts.3.w1.weight") {
      EXPECT_EQ(experts.value.f32()[piece.offset], 1);      // 2 x 0.5
      EXPECT_EQ(experts.value.f32()[piece.offset + 1], 0.5f);
    }
  const std::vector<float> kv_norm = source.reader("model.layers.2.attn.norm.weight").read_f32("model.layers.2.attn.norm.weight");
  EXPECT_EQ(store.find("model.layers.2.attn.norm.weight")->value.f32()[3], kv_norm[3]);
  EXPECT_EQ(store.find("model.embed_tokens.weight")->value.f32()[7], source.reader("model.embed_tokens.weight").read_f32("model.embed_tokens.weight")[7]);
}

}  // namespace
}  // namespace hyscale
