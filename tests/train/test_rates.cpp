// Model FLOPs and MFU by hand, the time of a step by part, and TensorBoard's files, read back by a decoder of their own.
#include "train/rates.h"

#include <cstring>
#include <map>

#include "core/range.h"
#include "models/registry.h"
#include "tests/support/processes.h"
#include "train/event_file.h"
#include "train/step_profile.h"

namespace hyscale {
namespace {

using test::TemporaryFolder;

HostSequence documents(const std::vector<int32_t>& starts) {
  const std::vector<int32_t> tokens(static_cast<size_t>(starts.back()));
  return make_host_sequence(tokens, tokens, starts);
}

// tests/goldens/glm51: 2 heads, latent rows of kv_lora_rank + qk_rope_head_dim, an indexer that keeps index_topk keys.
TEST(Reports, U25_MfuCountsSelectedKeysAndOnlyKnownPeaks) {
  const nlohmann::json c = read_hf_config("tests/goldens/glm51/config.json");
  const auto number = [&](const char* key) { return c.at(key).get<double>(); };
  const auto model = make_model(c, "config.json", {});
  const double k = number("index_topk"), layers = number("num_hidden_layers"), heads = number("num_attention_heads");
  const double linear = 2.0 * static_cast<double>(model->num_active_elements());
  const double pair = 2 * heads * (2 * number("kv_lora_rank") + number("qk_rope_head_dim"));
  const double dense_pair = 2 * heads * (number("qk_nope_head_dim") + number("qk_rope_head_dim") + number("v_head_dim"));
  const double score = 2 * number("index_n_heads") * number("index_head_dim");
  // Pairs, counted one by one: of a query with v visible keys v are scored and min(v, k) read.
  const auto by_hand = [&](const std::vector<int>& lengths, Stage stage) {
    double flops = 0;
    for (const int n : lengths)
      for (int visible = 1; visible <= n; ++visible)
        flops += stage == Stage::sparse ? 3 * (linear + layers * pair * std::min<double>(visible, k)) + layers * score * visible
                                        : linear + layers * (dense_pair + 3 * score) * visible;
    return flops;
  };
  for (const Stage stage : {Stage::sparse, Stage::warmup}) {
    FlopCounter counter(*model);
    const double one = counter.sequence(documents({0, 96}), stage), packed = counter.sequence(documents({0, 40, 40, 41, 96}), stage);
    EXPECT_NEAR(one, by_hand({96}, stage), 1e-9 * one);
    EXPECT_NEAR(packed, by_hand({40, 1, 55}, stage), 1e-9 * packed);
    EXPECT_LT(packed, one);  // what documents hide from each other is not counted
  }
  EXPECT_EQ(peak_flops("NVIDIA H20"), 148e12);
  EXPECT_EQ(peak_flops("NVIDIA H20-3e"), 148e12);
  EXPECT_EQ(peak_flops("NVIDIA H800"), 989e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(peak_flops("NVIDIA H200"), 989e12);
  for (const char* unknown : {"cpu", "", "NVIDIA A100-SXM4-80GB", "NVIDIA GH200 480GB", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA H200 MIG 1g.18gb", "H2000"})
    EXPECT_FALSE(peak_flops(unknown)) << unknown;
  EXPECT_EQ(mfu_text(model_flops_utilization(1, 1, 1, peak_flops("another GPU"))), "n/a");
  EXPECT_EQ(mfu_text(model_flops_utilization(989e12, 2, 4, peak_flops("NVIDIA H200"))), "12.5%");
}

TEST(StepProfile, TimeGoesToTheOutermostOpAndAddsUp) {
  const auto pass = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  StepProfile profile(Device{});
  for (int round = 0; round < 2; ++round) {
    profile.begin();
    {
      const Range layer("forward layer 0");
      pass();
      const Range op("flash_topk");
      pass();
      const Range inner("gemm");
      pass();
    }
    {
      const Range head("lm_head_loss");
      const Range inner("gemm");
      pass();
    }
    const StepProfile::Seconds s = profile.finish();
    EXPECT_GE(s.parts.at("selection"), 0.004);
    EXPECT_FALSE(s.parts.count("products"));
    EXPECT_GE(s.phases.at("forward layers"), 0.006);
    EXPECT_GE(s.phases.at("head and loss"), 0.002);
    double phases = 0, parts = 0;
    for (const auto& [name, seconds] : s.phases) phases += seconds;
    for (const auto& [name, seconds] : s.parts) parts += seconds;
    EXPECT_NEAR(phases, parts, 1e-9);
  }
}

// A decoder of TFRecord and of the Event messages that EventFile writes, by their definitions.
struct Decoder {
  std::string_view bytes;
  bool done() const { return bytes.empty(); }
  template <typename T>
  T fixed() {
    T value{};
    HYSCALE_CHECK(bytes.size() >= sizeof value, "cut short");
    std::memcpy(&value, bytes.data(), sizeof value);
    bytes.remove_prefix(sizeof value);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const uint8_t byte = fixed<uint8_t>();
      value |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return value;
    }
  }
  Decoder part(size_t count) {
    HYSCALE_CHECK(bytes.size() >= count, "cut short");
    const Decoder inner{bytes.substr(0, count)};
    bytes.remove_prefix(count);
    return inner;
  }
};

// Bit by bit: the polynomial of CRC-32C, reflected.
uint32_t crc32c_by_bits(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  return ~crc;
}
uint32_t unmasked(uint32_t stored) {
  const uint32_t rotated = stored - 0xa282ead8u;
  return rotated << 15 | rotated >> 17;
}

struct DecodedEvent {
  double wall_time = 0;
  uint64_t step = 0, session_status = 0;
  std::string version;
  std::map<std::string, float> scalars;
};
std::map<std::string, float> decode_summary(Decoder summary) {
  std::map<std::string, float> scalars;
  while (!summary.done()) {
    EXPECT_EQ(summary.varint(), 1u << 3 | 2u);
    Decoder value = summary.part(summary.varint());
    EXPECT_EQ(value.varint(), 1u << 3 | 2u);
    const std::string tag(value.part(value.varint()).bytes);
    EXPECT_EQ(value.varint(), 2u << 3 | 5u);
    scalars[tag] = value.fixed<float>();
    EXPECT_TRUE(value.done());
  }
  return scalars;
}
std::vector<DecodedEvent> decode(const std::string& file) {
  std::vector<DecodedEvent> events;
  for (Decoder in{file}; !in.done();) {
    const std::string_view length_bytes = in.bytes.substr(0, 8);
    const uint64_t length = in.fixed<uint64_t>();
    EXPECT_EQ(unmasked(in.fixed<uint32_t>()), crc32c_by_bits(length_bytes));
    Decoder body = in.part(length);
    EXPECT_EQ(unmasked(in.fixed<uint32_t>()), crc32c_by_bits(body.bytes));
    DecodedEvent e;
    while (!body.done()) switch (body.varint()) {
        case 1 << 3 | 1: e.wall_time = body.fixed<double>(); break;
        case 2 << 3 | 0: e.step = body.varint(); break;
        case 3 << 3 | 2: e.version = body.part(body.varint()).bytes; break;
        case 5 << 3 | 2: e.scalars = decode_summary(body.part(body.varint())); break;
        case 7 << 3 | 2: {
          Decoder log = body.part(body.varint());
          EXPECT_EQ(log.varint(), 1u << 3 | 0u);
          e.session_status = log.varint();
          break;
        }
        default: ADD_FAILURE() << "an unknown field";
      }
    events.push_back(e);
  }
  return events;
}

std::string only_file(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  EXPECT_EQ(paths.size(), 1u);
  EXPECT_CONTAINS(paths.at(0), "/events.out.tfevents.");
  return paths.at(0);
}

TEST(EventFile, RecordsReadBackWithTheirChecksums) {
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);  // the check value of CRC-32C's definition
  const TemporaryFolder folder;
  EventFile(folder / "events", 7).write({{"step", 7}, {"loss", 2.5}, {"applied", true}, {"mfu", nullptr}, {"index_loss_of_layer", {0.5, nullptr, 0.25}}, {"parts", {{"attention", 3}}},
                                          {"tokens", int64_t{1} << 40}});
  const std::vector<DecodedEvent> events = decode(test::read_file(only_file(folder / "events")));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[1].session_status, 1u);
  EXPECT_EQ(events[1].step, 7u);
  EXPECT_EQ(events[2].step, 7u);
  EXPECT_GT(events[2].wall_time, 1.7e9);
  EXPECT_EQ(events[2].scalars, (std::map<std::string, float>{{"loss", 2.5f}, {"index_loss_of_layer/00", 0.5f}, {"index_loss_of_layer/02", 0.25f}, {"parts/attention", 3.f},
                                                              {"tokens", static_cast<float>(int64_t{1} << 40)}}));
}

}  // namespace
}  // namespace hyscale
