// Faults that users of long-context trainers report, each as a small test named after its number in docs/reports.md: what needs no
// program to run. The others are in test_reported_runs.cpp, and with the code that they are about.
#include <fcntl.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>

#include "comm/context_layout.h"
#include "config/config.h"
#include "data/indexed_dataset.h"
#include "kernels/rope/rope.h"
#include "tests/support/model_runs.h"
#include "tests/support/processes.h"

namespace hyscale {
namespace {

using test::contains;
using test::HostTensor;
using test::TemporaryFolder;

// Calls for the part of every context rank.
void for_parts(const HostSequence& s, int ranks, ContextOrder order, const std::function<void(const PackedSequence&)>& call) {
  const ContextLayout layout(static_cast<int64_t>(s.tokens.size()), ranks, order);
  for (int rank = 0; rank < ranks; ++rank) {
    Arena arena(Device{}, "part");
    call(to_device(s, layout, rank, {}, arena, {}));
  }
}

nlohmann::json tiny_config() { return read_hf_config("tests/goldens/glm51/config.json"); }

TEST(Reports, U02_TheDivisorCountsTheLabelsOfAllRanks) {
  // Two data ranks with two context ranks each: 3 and 5, 7 and 1 labels.
  std::vector<HostSequence> sequences(2, test::sequence({512}));
  const std::vector<std::vector<int>> counts{{3, 5}, {7, 1}};
  StepTotals totals;
  int64_t in_parts = 0;
  for (size_t i = 0; i < 2; ++i) {
    HostSequence& s = sequences[i];
    const ContextLayout layout(512, 2, ContextOrder::zigzag);
    std::fill(s.labels.begin(), s.labels.end(), -1);
    for (int rank = 0; rank < 2; ++rank)
      for (int n = 0; n < counts[i][static_cast<size_t>(rank)]; ++n) s.labels[static_cast<size_t>(layout.to_global(rank, 20 * n))] = 1;
    totals.add(s, 0);
    size_t rank = 0;
    for_parts(s, 2, ContextOrder::zigzag, [&](const PackedSequence& part) {
      const int64_t labels = std::count(part.labels.i32(), part.labels.i32() + part.num_tokens(), 1);
      EXPECT_EQ(labels, counts[i][rank++]);
      in_parts += labels;
    });
  }
  EXPECT_EQ(totals.labels, 16);  // every rank adds up all sequences of the step, so all have this one number
  EXPECT_EQ(in_parts, 16);
}

TEST(Reports, U04_EveryLossWeighsItsTermsOnceHoweverTheStepIsCut) {
  nlohmann::json config = tiny_config();
  config["num_nextn_predict_layers"] = 1;
  config["index_share_for_mtp_iteration"] = false;
  const ModelOptions mtp{.mtp = true, .mtp_depths = 2};
  const HostSequence whole = test::sequence({50, 7, 21});
  std::vector<HostSequence> parts;
  for (size_t d = 0; d < 3; ++d) {
    const auto first = whole.document_starts[d], last = whole.document_starts[d + 1];
    parts.push_back(make_host_sequence({whole.tokens.begin() + first, whole.tokens.begin() + last}, {whole.labels.begin() + first, whole.labels.begin() + last}, {0, last - first}));
  }
  const auto one = test::make_random(config, mtp), three = test::make_random(config, mtp);
  const StepLosses a = test::train_once(*one, test::run_options(), {whole}).losses, b = test::train_once(*three, test::run_options(), parts).losses;
  for (const auto part : {&StepLosses::lm, &StepLosses::mtp, &StepLosses::index, &StepLosses::balance}) {
    EXPECT_GT(a.*part, 0);
    EXPECT_NEAR(b.*part, a.*part, 1e-5 * a.*part);
  }
  EXPECT_LT(test::relative_difference(test::gradients_of(*three), test::gradients_of(*one)), 1e-5);
}

TEST(Reports, U06_LabelsAreShiftedBeforeTheSequenceIsCut) {
  const HostSequence s = test::sequence({300, 1, 129, 600});
  std::vector<std::pair<int32_t, int32_t>> whole;
  for (size_t t = 0; t < s.tokens.size(); ++t) whole.emplace_back(s.tokens[t], s.labels[t]);
  std::sort(whole.begin(), whole.end());
  for (const int ranks : {1, 2, 4, 8})
    for (const ContextOrder order : {ContextOrder::zigzag, ContextOrder::contiguous}) {
      std::vector<std::pair<int32_t, int32_t>> parts;
      for_parts(s, ranks, order, [&](const PackedSequence& part) {
        for (int64_t t = 0; t < part.num_tokens(); ++t) parts.emplace_back(part.tokens.i32()[t], part.labels.i32()[t]);
      });
      std::sort(parts.begin(), parts.end());
      EXPECT_EQ(parts, whole) << ranks << " ranks";
    }
}

TEST(Reports, U07_NoTokenOfOddDocumentsIsLost) {
  const HostSequence s = test::sequence({7, 1, 13, 64, 2, 501});
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<int32_t> of_document(6);
    std::vector<int32_t> bounds;  // (begin, end) of every query
    for_parts(s, ranks, ContextOrder::zigzag, [&](const PackedSequence& part) {
      for (int64_t run = 0; run < part.document_ids.size(0); ++run)
        of_document[static_cast<size_t>(part.document_ids.i32()[run])] += part.document_starts.i32()[run + 1] - part.document_starts.i32()[run];
      bounds.insert(bounds.end(), part.key_end.i32(), part.key_end.i32() + part.num_tokens());
    });
    EXPECT_EQ(of_document, (std::vector<int32_t>{7, 1, 13, 64, 2, 501})) << ranks << " ranks";
    std::sort(bounds.begin(), bounds.end());
    EXPECT_EQ(bounds, s.key_end) << ranks << " ranks";
  }
}

TEST(Reports, U08_DocumentsThatEndInsideABlockAreTheSameAlone) {
  const auto model = test::make_random(tiny_config());
  Step step(*model, {});
  const HostSequence packed = test::sequence({781, 1267});
  const std::vector<float> all = step.logits(packed);
  for (const auto& [first, last] : {std::pair{0, 781}, {781, 2048}}) {
    const HostSequence alone = make_host_sequence({packed.tokens.begin() + first, packed.tokens.begin() + last}, std::vector<int32_t>(static_cast<size_t>(last - first), -1), {0, last - first});
    const std::vector<float> part = step.logits(alone);
    double worst = 0;
    for (size_t i = 0; i < part.size(); ++i) {
      ASSERT_TRUE(std::isfinite(all[static_cast<size_t>(first) * 160 + i]));
      worst = std::max(worst, std::abs(double{part[i]} - all[static_cast<size_t>(first) * 160 + i]));
    }
    EXPECT_LT(worst, 1e-4);  // products of other sizes sum in another order
  }
}

// The recipe is Hugging Face's: position times frequency in f32. Held against f64 twice: for that product, where only the cosine is
// rounded; and for the exact angle, from which both factors and the product are off by a relative 2^-24 each (the frequency by some more).
TEST(Reports, U15_RopeKnowsNeighboursAtAMillionTokens) {
  constexpr int64_t kWidth = 64, kHalf = kWidth / 2;
  const std::vector<int32_t> at{0, 1, 65535, 65536, 262143, 262144, 1048574, 1048575};
  const int64_t tokens = static_cast<int64_t>(at.size());
  const double theta = 1e6;
  const std::vector<float> frequencies = rope_inverse_frequencies(static_cast<float>(theta), kWidth);
  HostTensor x({tokens, 1, kWidth}), inv_freq({kHalf});
  for (int64_t i = 0; i < x.size(); ++i) x[i] = i % 2 ? 0.0f : 1.0f;
  for (int64_t i = 0; i < kHalf; ++i) inv_freq[i] = frequencies[static_cast<size_t>(i)];
  rope({x, test::ints({tokens}, at), inv_freq, true, false, {}});
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < kHalf; ++i) {
      const double position = at[static_cast<size_t>(t)], product = static_cast<float>(position) * inv_freq[i];
      const double exact = position * std::pow(theta, -2.0 * static_cast<double>(i) / kWidth);
      EXPECT_NEAR(x[t * kWidth + 2 * i], std::cos(product), 1e-6);
      EXPECT_NEAR(x[t * kWidth + 2 * i + 1], std::sin(product), 1e-6);
      EXPECT_NEAR(product, exact, 1e-6 + 8 * exact * std::exp2(-24)) << "position " << position << ", frequency " << i;
    }
  for (int64_t t = 0; t + 1 < tokens; ++t) EXPECT_GT(std::abs(x[t * kWidth] - x[(t + 1) * kWidth]), 1e-3) << "positions " << at[static_cast<size_t>(t)] << " and the next";
}

TEST(Reports, U21_TiedEmbeddingsAreRefusedSoNoShardIsEmpty) {
  nlohmann::json c = tiny_config();
  c["tie_word_embeddings"] = true;
  EXPECT_CONTAINS(test::error_of([&] { make_model(c, "config.json", {}); }), "tie_word_embeddings");
}

TEST(Reports, U22_PlacesBeyondFourBillionBytes) {
  const TemporaryFolder folder;
  const std::vector<int64_t> places{0, (int64_t{1} << 33) - 2, (int64_t{1} << 33) + 1000};
  const std::vector<int32_t> lengths{3, 2, 3};
  std::string idx("MMIDIDX\0\0", 9);
  const auto put = [&](const auto& value) { idx.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(uint64_t{1}), put(uint8_t{8}), put(uint64_t{3}), put(uint64_t{4});  // version, 16-bit tokens, sequences, document marks
  for (const int32_t n : lengths) put(n);
  for (const int64_t place : places) put(place);
  for (int64_t d = 0; d <= 3; ++d) put(d);
  test::write_file(folder / "far.idx", idx);
  const int bin = open((folder / "far.bin").c_str(), O_WRONLY | O_CREAT, 0644);  // holes take no room on the disk
  for (size_t d = 0; d < 3; ++d)
    for (int32_t i = 0; i < lengths[d]; ++i) {
      const uint16_t token = static_cast<uint16_t>(10 * d + static_cast<size_t>(i) + 1);
      ASSERT_EQ(pwrite(bin, &token, 2, places[d] + 2 * i), 2);
    }
  close(bin);
  const IndexedDataset data(folder / "far");
  EXPECT_EQ(data.num_tokens(), 8);
  for (int64_t d = 0; d < 3; ++d) {
    std::vector<int32_t> tokens(static_cast<size_t>(lengths[static_cast<size_t>(d)]));
    data.read(d, 0, static_cast<int64_t>(tokens.size()), 100, tokens.data());
    for (size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(tokens[i], 10 * d + static_cast<int64_t>(i) + 1);
  }
}

// Other values that a key might take: one of each kind, and what the error for a word names as choices.
std::vector<std::string> other_values(const std::string& path, const std::string& key, const std::string& value) {
  if (value == "true" || value == "false") return {value == "true" ? "false" : "true"};
  std::vector<std::string> out{"2", "3", "0.5", "1e-9", "another"};
  try {
    read_config(path, {key + "=another"});
  } catch (const UserError& e) {
    const std::string message = e.what(), list = "expected one of ";
    if (!contains(message, list)) return out;
    out.clear();
    std::istringstream words(message.substr(message.find(list) + list.size()));
    for (std::string word; words >> word;) out.push_back(word.substr(0, word.find(',')));
  }
  return out;
}

TEST(Reports, U26_EveryOptionActsOrIsRefusedByName) {
  const TemporaryFolder folder;
  const std::string path = folder / "run.yaml";
  test::write_file(path, "model:\n  config: m.json\ndata:\n  train: [{path: d}]\n  validation: [{path: v}]\n  sequence_tokens: 64\ntrain:\n  steps: 10\n");
  const std::string effective = config_yaml(read_config(path));
  int keys = 0;
  for (const auto& section : YAML::Load(effective))
    for (const auto& entry : section.second) {
      if (!entry.second.IsScalar()) continue;
      const std::string key = section.first.as<std::string>() + "." + entry.first.as<std::string>();
      bool acts = false, refused = false;
      for (const std::string& value : other_values(path, key, entry.second.Scalar())) {
        if (value == entry.second.Scalar()) continue;
        try {
          acts = acts || config_yaml(read_config(path, {key + "=" + value})) != effective;
        } catch (const UserError& e) {
          refused = refused || contains(e.what(), section.first.as<std::string>() + ".");
        }
      }
      EXPECT_TRUE(acts || refused) << key;
      ++keys;
    }
  EXPECT_GT(keys, 50);
}

}  // namespace
}  // namespace hyscale
