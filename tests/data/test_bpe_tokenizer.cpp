#include "data/bpe_tokenizer.h"

#include "core/json.h"
#include "data/build_dataset.h"
#include "data/indexed_dataset.h"
#include "tests/support/processes.h"

namespace hyscale {
namespace {

using nlohmann::json;
using test::error_of;
using test::TemporaryFolder;

const std::string kFolder = "tests/data/tokenizers/";

class BpeTokenizerFamilies : public testing::TestWithParam<std::string> {};

// expected.json comes from Hugging Face's own implementation (make_vectors.py).
TEST_P(BpeTokenizerFamilies, IdsAreThoseOfHuggingFace) {
  const auto t = make_tokenizer(kFolder + GetParam());
  const json cases = read_json_file(kFolder + GetParam() + "/expected.json");
  EXPECT_GT(cases.size(), 70u);
  for (const json& c : cases) EXPECT_EQ(json(t->encode(c["text"].get<std::string>())), c["ids"]) << c["text"].dump(-1, ' ', true);
}

INSTANTIATE_TEST_SUITE_P(, BpeTokenizerFamilies, testing::Values("glm", "deepseek", "qwen", "steps"), [](const auto& i) { return i.param; });

TEST(BpeTokenizer, DecodingGivesTheNormalisedTextBack) {
  for (const std::string family : {"glm", "deepseek", "qwen"}) {
    const auto t = make_tokenizer(kFolder + family);
    for (const json& c : read_json_file(kFolder + family + "/expected.json")) {
      const std::string text = c["text"].get<std::string>();
      EXPECT_EQ(t->decode(t->encode(text)), normalize(text, family == "qwen" ? NormalForm::nfc : NormalForm::none)) << family << c["text"].dump(-1, ' ', true);
    }
  }
}

// The error of glm's tokenizer.json after a change.
std::string error_with(const std::function<void(json&)>& change) {
  const TemporaryFolder f;
  json file = read_json_file(kFolder + "glm/tokenizer.json");
  change(file);
  test::write_file(f / "tokenizer.json", file.dump());
  const std::string error = error_of([&] { BpeTokenizer t(f / "tokenizer.json"); });
  return error.starts_with(f.path()) ? error.substr(f.path().size() + 1) : error;
}

TEST(BpeTokenizer, WhatWouldMakeOtherIdsIsRefusedByName) {
  EXPECT_EQ(error_with([](json&) {}), "accepted");
  EXPECT_EQ(error_with([](json& j) { j["model"]["type"] = "Unigram"; }), "tokenizer.json: model: \"type\" is \"Unigram\"; expected supported is \"BPE\"");
  EXPECT_CONTAINS(error_with([](json& j) { j["model"]["byte_fallback"] = true; }), "tokenizer.json: model: \"byte_fallback\" is true; expected supported is false");
  EXPECT_CONTAINS(error_with([](json& j) { j["model"]["dropout"] = 0.1; }), "\"dropout\" is 0.1");
  EXPECT_CONTAINS(error_with([](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }), "\"end_of_word_suffix\" is \"</w>\"");
  EXPECT_CONTAINS(error_with([](json& j) { j["normalizer"] = {{"type", "Lowercase"}}; }), "normalizer: \"type\" is \"Lowercase\"; expected NFC");
  EXPECT_CONTAINS(error_with([](json& j) { j["pre_tokenizer"] = {{"type", "Metaspace"}}; }), "pre_tokenizer[0]: \"type\" is \"Metaspace\"");
  EXPECT_CONTAINS(error_with([](json& j) { j["pre_tokenizer"] = nullptr; }), "pre_tokenizer has no ByteLevel step");
  EXPECT_CONTAINS(error_with([](json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }), "\"add_prefix_space\" is true");
  EXPECT_CONTAINS(error_with([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Contiguous"; }), "pre_tokenizer[0]: \"behavior\" is \"Contiguous\"");
  EXPECT_CONTAINS(error_with([](json& j) { j["added_tokens"][0]["lstrip"] = true; }), "added_tokens[0]: \"lstrip\" is true");
  EXPECT_CONTAINS(error_with([](json& j) { j["decoder"] = {{"type", "WordPiece"}}; }), "decoder: \"type\" is \"WordPiece\"");
}

TEST(BpeTokenizer, MalformedFilesAreNamedWithWhatIsWrong) {
  EXPECT_CONTAINS(error_of([] { make_tokenizer("/nowhere/tokenizer.json"); }), "/nowhere/tokenizer.json: does not exist");
  EXPECT_CONTAINS(error_with([](json& j) { j = json::array(); }), "tokenizer.json: expected a JSON object");
  EXPECT_CONTAINS(error_with([](json& j) { j.erase("model"); }), "tokenizer.json: \"model\" is missing");
  EXPECT_CONTAINS(error_with([](json& j) { j["model"]["vocab"]["a"] = -1; }), "model: vocab: \"a\" is -1; expected an id from 0 to");
  EXPECT_CONTAINS(error_with([](json& j) { j["model"]["vocab"]["a"] = int64_t{1} << 40; }), "expected an id from 0 to");
  EXPECT_CONTAINS(error_with([](json& j) { j["model"]["vocab"]["a"] = j["model"]["vocab"]["b"]; }), "expected an id that no other token has");
  EXPECT_CONTAINS(error_with([](json& j) { j["model"]["vocab"].erase("a"); }), "model: vocab has no token for byte 97");
  for (const json& merge : {json("a b c"), json("ab"), json(""), json("a "), json({"a"}), json({"a", 1}), json(5), json({"zq", "zq"})})
    EXPECT_CONTAINS(error_with([&](json& j) { j["model"]["merges"][2] = merge; }), "model: merges[2] is ");
  EXPECT_CONTAINS(error_with([](json& j) { j["added_tokens"][1]["id"] = j["added_tokens"][0]["id"]; }), "added_tokens[1]: \"content\" is \"<|user|>\"; expected every token and id once");
  EXPECT_CONTAINS(error_with([](json& j) { j["added_tokens"][0]["id"] = 5; }), "added_tokens[0]: \"id\" is 5; expected one that the vocabulary does not use");
  const TemporaryFolder f;
  test::write_file(f / "deep.json", std::string(100000, '['));
  EXPECT_CONTAINS(error_of([&] { make_tokenizer(f / "deep.json"); }), "deep.json: nests deeper than 64 levels");
}

std::string pattern_error(const std::string& pattern) {
  return error_of([&] { SplitPattern p(pattern, SplitPattern::Kind::regex, "here"); });
}

TEST(SplitPattern, ConstructsThatPcreReadsOtherwiseAreRefused) {
  EXPECT_EQ(pattern_error(R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+| ?[\p{P}\p{S}]+[\r\n]*|\p{Lu}?)"), "accepted");
  EXPECT_EQ(pattern_error(R"(\s+(?!\S)|[^\s\p{L}]?\p{N}{1,3}|(?i:'s)|\x{3000}+|\\w)"), "accepted");
  EXPECT_CONTAINS(pattern_error(R"(a\w)"), "here: the pattern \"a\\w\" has the escape \\w at character 1, which is not supported");
  EXPECT_CONTAINS(pattern_error(R"(\h)"), "the escape \\h");
  EXPECT_CONTAINS(pattern_error("[a-z&&[^x]]"), "an intersection of classes");
  EXPECT_CONTAINS(pattern_error("[a[bc]]"), "a class in a class");
  EXPECT_CONTAINS(pattern_error("\\p{N}{1,3}+"), "a repeated quantifier");
  EXPECT_CONTAINS(pattern_error("a{,3}"), "a quantifier without a lower bound");
  EXPECT_CONTAINS(pattern_error("(?m:.)"), "a group of another kind");
  EXPECT_CONTAINS(pattern_error("(*ACCEPT)"), "a verb");
  EXPECT_CONTAINS(pattern_error("(a"), "is malformed: missing closing parenthesis");
  EXPECT_CONTAINS(pattern_error("((((a{1000}){1000}){1000}){1000})"), "is malformed");
  EXPECT_CONTAINS(pattern_error(std::string(100000, 'a')), "a pattern of 100000 bytes");
}

TEST(SplitPattern, RunawayPatternsEndWithAnError) {
  const SplitPattern p("(a|aa|aaa)+$", SplitPattern::Kind::regex, "here");
  EXPECT_CONTAINS(error_of([&] { p.split(std::string(60, 'a') + "c", [](std::string_view, bool) {}); }), "here: the pattern fails on a text of 61 bytes: match limit exceeded");
}

// A run of spaces is walked to its end and back, a step for every byte.
TEST(SplitPattern, LongRunsOfSpacesStayWithinTheLimits) {
  const SplitPattern p(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", SplitPattern::Kind::regex, "here");
  std::vector<size_t> sizes;
  p.split(std::string(40'000'000, ' ') + "x", [&](std::string_view piece, bool) { sizes.push_back(piece.size()); });
  EXPECT_EQ(sizes, (std::vector<size_t>{39'999'999, 1, 1}));
}

TEST(BpeTokenizer, TextThatIsNotUtf8IsRefusedWithItsPlace) {
  const TemporaryFolder f;
  const auto t = make_tokenizer(kFolder + "glm", "<|endoftext|>");
  test::write_file(f / "latin1.txt", "caf\xe9 au lait");
  EXPECT_CONTAINS(error_of([&] { build_dataset({{f / "latin1.txt"}, f / "set"}, *t); }), "latin1.txt: byte 3 is not valid UTF-8");
  test::write_file(f / "surrogate.txt", "\xed\xa0\x80");
  EXPECT_CONTAINS(error_of([&] { build_dataset({{f / "surrogate.txt"}, f / "set"}, *t); }), "byte 0 is not valid UTF-8");
}

TEST(BpeTokenizer, DocumentsEndWithTheTokenOfTheOptionOrOfTheConfig) {
  const TemporaryFolder f;
  const std::string plain = kFolder + "glm";
  EXPECT_EQ(make_tokenizer(plain)->end_of_document(), -1);
  EXPECT_EQ(make_tokenizer(plain, "<|endoftext|>")->end_of_document(), 421);
  EXPECT_CONTAINS(error_of([&] { make_tokenizer(plain, "<|nothing|>"); }), "tokenizer.json: has no token \"<|nothing|>\" (end of document)");
  std::filesystem::copy(plain, f / "t");
  for (const char* config : {R"({"eos_token": "<|user|>"})", R"({"eos_token": {"content": "<|user|>", "lstrip": false}})"}) {
    test::write_file(f / "t/tokenizer_config.json", config);
    EXPECT_EQ(make_tokenizer(f / "t")->end_of_document(), 422);
  }
  test::write_file(f / "x.txt", "selection");
  EXPECT_CONTAINS(error_of([&] { build_dataset({{f / "x.txt"}, f / "set"}, *make_tokenizer(plain)); }), "name one with --end-of-document");
  const auto t = make_tokenizer(f / "t");
  EXPECT_EQ(build_dataset({{f / "x.txt"}, f / "set"}, *t).tokens, 2);
  std::vector<int32_t> ids(2);
  IndexedDataset(f / "set").read(0, 0, 2, t->vocabulary_size(), ids.data());
  EXPECT_EQ(ids, (std::vector<int32_t>{420, 422}));
}

// Long words may not take quadratic time.
TEST(BpeTokenizer, LongRunsOfOneKindAreCutAndMerged) {
  const auto t = make_tokenizer(kFolder + "glm");
  for (const char* unit : {"e", "  \n", "\u3000", "1", "\u952e"}) {
    std::string text;
    while (text.size() < 300'000) text += unit;
    text += "x";
    EXPECT_TRUE(t->decode(t->encode(text)) == text) << "'" << unit << "'";
  }
}

}  // namespace
}  // namespace hyscale
