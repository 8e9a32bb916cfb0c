#include <sentencepiece_trainer.h>

#include <map>
#include <set>

#include "data/build_dataset.h"
#include "data/loader.h"
#include "tests/support/processes.h"

namespace hyscale {
namespace {

using test::error_of;
using test::TemporaryFolder;
namespace fs = std::filesystem;

void write_dataset(const std::string& prefix, const std::vector<std::vector<int32_t>>& documents, int64_t vocabulary = 257) {
  IndexedDatasetWriter w(prefix, vocabulary);
  for (const auto& d : documents) w.add_document(d);
  w.finish();
}

std::string bytes(std::initializer_list<unsigned> values) {
  std::string s;
  for (unsigned v : values) s.push_back(static_cast<char>(v));
  return s;
}

// The index that Megatron writes for documents {1, 2, 3} and {4} of 16-bit ids, byte by byte.
const std::string kIndex = "MMIDIDX" + bytes({0, 0}) + bytes({1, 0, 0, 0, 0, 0, 0, 0, 8}) + bytes({2, 0, 0, 0, 0, 0, 0, 0}) + bytes({3, 0, 0, 0, 0, 0, 0, 0}) +
                           bytes({3, 0, 0, 0, 1, 0, 0, 0}) + bytes({0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0}) +
                           bytes({0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0});
const std::string kBin = bytes({1, 0, 2, 0, 3, 0, 4, 0});

TEST(IndexedDataset, ReadsAndWritesMegatronsBytes) {
  const TemporaryFolder f;
  write_dataset(f / "a", {{1, 2, 3}, {4}});
  EXPECT_EQ(test::read_file(f / "a.idx"), kIndex);
  EXPECT_EQ(test::read_file(f / "a.bin"), kBin);
  const IndexedDataset d(f / "a");
  EXPECT_EQ(d.num_documents(), 2);
  EXPECT_EQ(d.num_tokens(), 4);
  int32_t ids[2];
  d.read(0, 1, 2, 257, ids);
  EXPECT_EQ(ids[0], 2);
  EXPECT_EQ(ids[1], 3);
}

TEST(IndexedDataset, LargeVocabulariesTakeFourBytes) {
  const TemporaryFolder f;
  write_dataset(f / "a", {{70000, 1}}, 100000);
  EXPECT_EQ(fs::file_size(f / "a.bin"), 8u);
  int32_t id;
  IndexedDataset(f / "a").read(0, 0, 1, 100000, &id);
  EXPECT_EQ(id, 70000);
}

TEST(IndexedDataset, SequencesOfOneDocumentAreJoined) {
  const TemporaryFolder f;
  std::string index = kIndex;
  index[26] = 2;                                   // two document marks
  index.erase(34 + 8 + 16 + 8, 8);                 // 0 and 2: both sequences are one document
  test::write_file(f / "a.idx", index);
  test::write_file(f / "a.bin", kBin);
  const IndexedDataset d(f / "a");
  ASSERT_EQ(d.num_documents(), 1);
  EXPECT_EQ(d.document_tokens(0), 4);
  std::vector<int32_t> ids(3);
  d.read(0, 1, 3, 257, ids.data());
  EXPECT_EQ(ids, (std::vector<int32_t>{2, 3, 4}));
}

TEST(IndexedDataset, BadFilesAreNamedWithWhatIsWrong) {
  const TemporaryFolder f;
  const auto open_with = [&](const std::string& idx, const std::string& bin) {
    test::write_file(f / "a.idx", idx);
    test::write_file(f / "a.bin", bin);
    return error_of([&] { IndexedDataset d(f / "a"); });
  };
  EXPECT_EQ(open_with(kIndex, kBin), "accepted");
  EXPECT_CONTAINS(error_of([&] { IndexedDataset d(f / "missing"); }), "missing.bin: cannot open: No such file");
  EXPECT_CONTAINS(open_with(kIndex, kBin.substr(0, 7)), "a.bin: is truncated");
  EXPECT_CONTAINS(open_with(kIndex.substr(0, 20), kBin), "a.idx: is truncated: 20 bytes");
  EXPECT_CONTAINS(open_with(kIndex.substr(0, kIndex.size() - 1), kBin), "a.idx: is truncated or corrupt");
  EXPECT_CONTAINS(open_with("X" + kIndex.substr(1), kBin), "is no Megatron index");
  for (size_t at : {9, 17}) {
    std::string broken = kIndex;
    broken[at] = 99;
    EXPECT_CONTAINS(open_with(broken, kBin), at == 9 ? "version 99; expected 1" : "token dtype code 99");
  }
  std::string huge = kIndex;
  huge[25] = 0x7f;  // a sequence count near 2^63 must not become an allocation
  EXPECT_CONTAINS(open_with(huge, kBin), "do not fit into");
  std::string negative = kIndex;
  negative[37] = static_cast<char>(0xff);
  EXPECT_CONTAINS(open_with(negative, kBin), "is corrupt: sequence 0");
  std::string marks = kIndex;
  marks[marks.size() - 8] = 9;
  EXPECT_CONTAINS(open_with(marks, kBin), "document marks do not rise from 0 to 2");
}

// One long document made of the same bytes again and again would be read into memory that the .bin does not justify.
TEST(IndexedDataset, SequencesThatOverlapAreRefused) {
  const TemporaryFolder f;
  std::string index = kIndex;
  index[34 + 4] = 4;      // the second sequence has 4 tokens ...
  index[34 + 8 + 8] = 0;  // ... and begins where the first does
  test::write_file(f / "a.idx", index);
  test::write_file(f / "a.bin", kBin);
  EXPECT_CONTAINS(error_of([&] { IndexedDataset d(f / "a"); }), "a.idx: is corrupt: sequences up to 1 have 7 tokens, the .bin holds 4");
}

TEST(IndexedDataset, IdsBeyondTheVocabularyAreNamed) {
  const TemporaryFolder f;
  write_dataset(f / "a", {{1}, {7, 200, 3}});
  int32_t ids[3];
  EXPECT_CONTAINS(error_of([&] { IndexedDataset(f / "a").read(1, 0, 3, 100, ids); }), "a.bin: document 1, token 1: id 200 is not in the model's vocabulary of 100");
}

TEST(Tokenizer, BytesRoundTrip) {
  const auto t = make_tokenizer("byte");
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  EXPECT_EQ(t->decode(t->encode(all)), all);
  EXPECT_EQ(t->end_of_document(), 256);
}

TEST(Tokenizer, AMissingModelIsNamed) { EXPECT_CONTAINS(error_of([] { make_tokenizer("/nowhere/t.model"); }), "/nowhere/t.model: does not exist; expected byte, a tokenizer.json or its folder, or a SentencePiece model"); }

TEST(Tokenizer, SentencePieceModelsEncodeDecodeAndEndDocuments) {
  const TemporaryFolder f;
  std::string text;
  for (const char* line : {"selected attention reads the best keys\n", "the indexer scores every earlier token\n", "a selection is a set of indices\n"})
    for (int i = 0; i < 20; ++i) text += line;
  test::write_file(f / "corpus.txt", text);
  const auto trained = sentencepiece::SentencePieceTrainer::Train("--input=" + (f / "corpus.txt") + " --model_prefix=" + (f / "m") +
                                                                  " --vocab_size=60 --hard_vocab_limit=false --minloglevel=2");
  ASSERT_TRUE(trained.ok()) << trained.ToString();
  const auto t = make_tokenizer(f / "m.model");
  const std::string sentence = "the best selection reads every token";
  const std::vector<int32_t> ids = t->encode(sentence);
  EXPECT_LT(ids.size(), sentence.size());
  for (int32_t id : ids) EXPECT_TRUE(id >= 0 && id < t->vocabulary_size());
  EXPECT_EQ(t->decode(ids), sentence);
  const BuildReport r = build_dataset({{f / "corpus.txt"}, f / "set"}, *t);
  std::vector<int32_t> stored(static_cast<size_t>(r.tokens));
  IndexedDataset(f / "set").read(0, 0, r.tokens, t->vocabulary_size(), stored.data());
  EXPECT_EQ(stored.back(), t->end_of_document());
  stored.pop_back();
  EXPECT_EQ(stored, t->encode(text));
}

TEST(BuildDataset, FoldersJsonLinesEmptyAndBinaryFiles) {
  const TemporaryFolder f;
  test::write_file(f / "in/b.txt", "two");
  test::write_file(f / "in/a/x.txt", "one");
  test::write_file(f / "in/empty.txt", "");
  test::write_file(f / "in/binary", std::string("a\0b", 3));
  test::write_file(f / "in/.git/hidden", "no");
  test::write_file(f / "in/c.jsonl", "{\"text\": \"three\"}\n\n{\"text\": \"\"}\n");
  const BuildReport r = build_dataset({{f / "in"}, f / "out/set"}, *make_tokenizer("byte"));
  EXPECT_EQ(r.documents, 3);
  EXPECT_EQ(r.empty_documents, 2);
  EXPECT_EQ(r.binary_files, 1);
  const IndexedDataset d(f / "out/set");
  std::vector<int32_t> ids(4);
  d.read(0, 0, 4, 257, ids.data());
  EXPECT_EQ(ids, (std::vector<int32_t>{'o', 'n', 'e', 256}));
  test::write_file(f / "bad.jsonl", "{\"text\": \"x\"}\n{\"body\": \"y\"}\n");
  EXPECT_CONTAINS(error_of([&] { build_dataset({{f / "bad.jsonl"}, f / "out/bad"}, *make_tokenizer("byte")); }), "bad.jsonl:2: has no string \"text\"");
  EXPECT_FALSE(fs::exists(f / "out/bad.idx"));
  EXPECT_CONTAINS(error_of([&] { build_dataset({{f / "nothing"}, f / "o"}, *make_tokenizer("byte")); }), "nothing: does not exist");
}

TEST(BuildDataset, PackedByGzipIsTheSame) {
  const TemporaryFolder f;
  std::string lines;
  const Rng rng(3);
  for (uint64_t i = 0; i < 60000; ++i) lines += "{\"text\": \"document " + std::to_string(rng.below(i, 1 << 30)) + "\"}\n";
  test::write_file(f / "a.jsonl", lines);
  test::write_file(f / "b.txt", "plain text");
  // Two members, as appending to a .gz makes them.
  ASSERT_EQ(test::run({"/bin/sh", "-c", "cd " + f.path() + " && mkdir gz && { head -n 30000 a.jsonl | gzip; tail -n 30000 a.jsonl | gzip; } > gz/a.jsonl.gz && gzip -c b.txt > gz/b.txt.gz"}).code, 0);
  const BuildReport plain = build_dataset({{f / "a.jsonl", f / "b.txt"}, f / "plain"}, *make_tokenizer("byte"));
  build_dataset({{f / "gz"}, f / "packed"}, *make_tokenizer("byte"));
  EXPECT_EQ(plain.documents, 60001);
  for (const std::string ending : {".bin", ".idx"}) EXPECT_TRUE(test::read_file(f / ("plain" + ending)) == test::read_file(f / ("packed" + ending))) << ending;
  const std::string good = test::read_file(f / "gz/a.jsonl.gz");
  const auto error_with = [&](const std::string& bytes) {
    test::write_file(f / "x.jsonl.gz", bytes);
    return error_of([&] { build_dataset({{f / "x.jsonl.gz"}, f / "x"}, *make_tokenizer("byte")); });
  };
  std::string wrong_sum = good;
  wrong_sum[good.size() - 5] ^= 1;
  EXPECT_CONTAINS(error_with(good.substr(0, good.size() - 100)), "x.jsonl.gz: is cut off");
  EXPECT_CONTAINS(error_with(""), "x.jsonl.gz: is cut off, or empty");
  EXPECT_CONTAINS(error_with("{\"text\": \"not packed\"}\n"), "x.jsonl.gz: is no valid gzip file");
  EXPECT_CONTAINS(error_with(wrong_sum), "x.jsonl.gz: is no valid gzip file");
  EXPECT_EQ(error_with(good), "accepted");
  test::write_file(f / "a.jsonl.zst", "x");
  EXPECT_CONTAINS(error_of([&] { build_dataset({{f / "a.jsonl.zst"}, f / "x"}, *make_tokenizer("byte")); }), "a.jsonl.zst: is packed; expected text or .jsonl, as they are or with .gz");
}

// What a run has open, or the only copy that there is.
TEST(BuildDataset, AnOlderDataSetStaysWholeUntilTheNewOneIs) {
  const TemporaryFolder f;
  const auto tokens_of = [](const IndexedDataset& d) {
    std::vector<int32_t> ids(static_cast<size_t>(d.document_tokens(0)));
    d.read(0, 0, d.document_tokens(0), 257, ids.data());
    return ids;
  };
  test::write_file(f / "old.txt", "first");
  test::write_file(f / "new.txt", "2nd");
  build_dataset({{f / "old.txt"}, f / "set"}, *make_tokenizer("byte"));
  const IndexedDataset open(f / "set");
  const std::vector<int32_t> first = tokens_of(open);
  test::write_file(f / "bad.jsonl", "{\"text\": \"x\"}\n{\n");
  EXPECT_CONTAINS(error_of([&] { build_dataset({{f / "bad.jsonl"}, f / "set"}, *make_tokenizer("byte")); }), "bad.jsonl:2");
  EXPECT_FALSE(fs::exists(f / "set.bin.partial"));
  EXPECT_EQ(tokens_of(IndexedDataset(f / "set")), first);
  build_dataset({{f / "new.txt"}, f / "set"}, *make_tokenizer("byte"));
  EXPECT_EQ(tokens_of(open), first);
  EXPECT_EQ(tokens_of(IndexedDataset(f / "set")), (std::vector<int32_t>{'2', 'n', 'd', 256}));
}

TEST(BuildDataset, ValidationTakesItsShareOfDocuments) {
  const TemporaryFolder f;
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "{\"text\": \"document\"}\n";
  test::write_file(f / "x.jsonl", lines);
  const BuildReport r = build_dataset({{f / "x.jsonl"}, f / "set", "text", true, 0.1}, *make_tokenizer("byte"));
  EXPECT_EQ(r.documents, 90);
  EXPECT_EQ(r.validation_documents, 10);
  EXPECT_CONTAINS(error_of([&] { build_dataset({{f / "x.jsonl"}, f / "none", "text", true, 0.005}, *make_tokenizer("byte")); }),
                  "none: a validation fraction of 0.005 takes none of 100 documents; expected at least 0.01, or no fraction");
  EXPECT_FALSE(fs::exists(f / "none.idx"));
}

// Documents whose tokens say which they are.
std::vector<std::vector<int32_t>> numbered(int32_t first, std::vector<int64_t> lengths) {
  std::vector<std::vector<int32_t>> documents;
  for (int64_t n : lengths) {
    documents.emplace_back();
    for (int64_t i = 0; i < n; ++i) documents.back().push_back(first++);
  }
  return documents;
}

Loader::Options options(const TemporaryFolder& f, std::vector<DatasetShare> shares, int64_t tokens = 16) {
  for (DatasetShare& s : shares) s.prefix = f / s.prefix;
  return {shares, tokens, 60000, 5, true};
}

TEST(Loader, EveryTokenOncePerEpochWithItsSuccessorAsLabel) {
  const TemporaryFolder f;
  const std::vector<int64_t> lengths{7, 1, 0, 13, 64, 2, 41};  // 128 tokens: 8 sequences of 16
  const auto documents = numbered(100, lengths);
  write_dataset(f / "a", documents, 60000);
  std::map<int32_t, int32_t> successor;
  for (const auto& d : documents)
    for (size_t i = 0; i < d.size(); ++i) successor[d[i]] = i + 1 < d.size() ? d[i + 1] : -1;
  Loader loader(options(f, {{"a"}}));
  std::set<int32_t> seen;
  for (int i = 0; i < 8; ++i) {
    const LoadedSequence s = loader.next();
    ASSERT_EQ(s.tokens.size(), 16u);
    EXPECT_EQ(s.document_starts.front(), 0);
    EXPECT_EQ(s.document_starts.back(), 16);
    for (size_t t = 0; t < 16; ++t) {
      EXPECT_TRUE(seen.insert(s.tokens[t]).second) << "token " << s.tokens[t] << " twice";
      EXPECT_EQ(s.labels[t], successor.at(s.tokens[t]));
    }
  }
  EXPECT_EQ(seen.size(), 128u);
}

TEST(Loader, ContinuesFromItsCursorAnywhere) {
  const TemporaryFolder f;
  write_dataset(f / "a", numbered(0, {5, 30, 2, 9, 17, 1}), 60000);
  write_dataset(f / "b", numbered(1000, {40, 3, 3, 50}), 60000);
  Loader straight(options(f, {{"a", 1}, {"b", 3}}));
  std::vector<LoadedSequence> all;
  std::vector<nlohmann::json> cursors;
  for (int i = 0; i < 60; ++i) {
    cursors.push_back(straight.cursor());
    all.push_back(straight.next());
  }
  for (size_t cut : {0, 1, 17, 37, 59}) {
    Loader resumed(options(f, {{"a", 1}, {"b", 3}}));
    resumed.restore(nlohmann::json::parse(cursors[cut].dump()));
    for (size_t i = cut; i < all.size(); ++i) {
      const LoadedSequence s = resumed.next();
      ASSERT_EQ(s.tokens, all[i].tokens) << "cut " << cut << ", sequence " << i;
      ASSERT_EQ(s.labels, all[i].labels);
      ASSERT_EQ(s.document_starts, all[i].document_starts);
    }
  }
}

TEST(Loader, WeightsSetTheShareOfTokens) {
  const TemporaryFolder f;
  write_dataset(f / "a", numbered(0, std::vector<int64_t>(50, 10)), 60000);
  write_dataset(f / "b", numbered(10000, std::vector<int64_t>(50, 7)), 60000);
  Loader loader(options(f, {{"a", 1}, {"b", 3}}, 100));
  int64_t from_b = 0;
  for (int i = 0; i < 100; ++i)
    for (int32_t id : loader.next().tokens) from_b += id >= 10000;
  EXPECT_NEAR(static_cast<double>(from_b) / 10000, 0.75, 0.01);
}

TEST(Loader, EpochsAndSeedsHaveTheirOwnOrder) {
  const TemporaryFolder f;
  write_dataset(f / "a", numbered(0, std::vector<int64_t>(64, 4)), 60000);
  Loader::Options o = options(f, {{"a"}}, 256);
  Loader loader(o);
  const LoadedSequence first = loader.next(), second = loader.next();
  EXPECT_NE(first.tokens, second.tokens);
  o.seed = 6;
  EXPECT_NE(Loader(o).next().tokens, first.tokens);
  o.shuffle = false;
  EXPECT_EQ(Loader(o).next().tokens[255], 255);
}

TEST(Loader, ErrorsNameTheDataSet) {
  const TemporaryFolder f;
  write_dataset(f / "a", {{1, 2}}, 60000);
  write_dataset(f / "empty", {{}, {}}, 60000);
  write_dataset(f / "single", {{1}, {}, {2}}, 60000);
  EXPECT_CONTAINS(error_of([&] { Loader l(options(f, {{"empty"}})); }), "empty.bin: holds no tokens");
  EXPECT_CONTAINS(error_of([&] { Loader l(options(f, {{"a"}, {"single"}})); }), "single.idx: no document has more than one token, so there is nothing to predict; expected");
  EXPECT_CONTAINS(error_of([&] { Loader l(options(f, {{"a", 0}})); }), "weight 0; expected a positive number");
  Loader l(options(f, {{"a"}}));
  const nlohmann::json cursor = l.cursor();
  write_dataset(f / "a", {{1, 2, 3}}, 60000);
  Loader other(options(f, {{"a"}}));
  EXPECT_CONTAINS(error_of([&] { other.restore(cursor); }), "has 1 documents and 3 tokens, index");
}

}  // namespace
}  // namespace hyscale
