// Which sequences training sees: shares of data sets, orders, skip lists, and continuation.

#include "data/loader.h"
#include "tests/support/processes.h"

namespace hyscale {
namespace {

using test::error_of;
using test::TemporaryFolder;

// `count` documents of the given lengths in turn; every token is `id`.
void write_dataset(const std::string& prefix, int64_t count, const std::vector<size_t>& lengths, int32_t id) {
  IndexedDatasetWriter w(prefix, 1000);
  for (int64_t d = 0; d < count; ++d) w.add_document(std::vector<int32_t>(lengths[static_cast<size_t>(d) % lengths.size()], id));
  w.finish();
}

class Blend : public testing::Test {
 protected:
  Blend() {
    write_dataset(f_ / "code", 40, {3, 11, 0, 50}, 0);
    write_dataset(f_ / "web", 90, {7, 1, 29}, 1);
    write_dataset(f_ / "books", 4, {200}, 2);
    options_ = {{{f_ / "code", 0.2}, {f_ / "web", 0.7}, {f_ / "books", 0.1}}, 32, 1000, 5, true, ""};
  }
  Loader::Options skipping(const std::string& list) {
    test::write_file(f_ / "skip", list);
    Loader::Options o = options_;
    o.skip = f_ / "skip";
    return o;
  }
  TemporaryFolder f_;
  Loader::Options options_;
};

TEST_F(Blend, NoDataSetIsEverFurtherFromItsShareThanADocument) {
  Loader loader(options_);
  const double weights[] = {0.2, 0.7, 0.1};
  double drawn[3] = {}, total = 0;
  for (int i = 0; i < 300; ++i) {
    for (int32_t id : loader.next().tokens) ++drawn[id], ++total;
    // The longest document has 200 tokens, and while it is drawn two others may be owed.
    for (int s = 0; s < 3; ++s) EXPECT_LE(std::abs(drawn[s] - weights[s] * total), 2 * 200) << "data set " << s << " after sequence " << i;
  }
}

TEST_F(Blend, OnlyTheRatioOfWeightsCounts) {
  Loader::Options scaled = options_;
  for (DatasetShare& d : scaled.datasets) d.weight *= 1000;
  Loader a(options_), b(scaled);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(a.next().describe, b.next().describe);
}

// Ranks of a step draw all of its sequences and work on every world_size-th, so what a step holds depends on no rank.
TEST_F(Blend, AnotherNumberOfRanksContinuesWithTheSameSequences) {
  const size_t per_step = 4;
  const auto step_of = [&](nlohmann::json& cursor, size_t world_size) {
    std::map<int64_t, std::string> sequences;
    nlohmann::json after;
    for (size_t rank = 0; rank < world_size; ++rank) {
      Loader loader(options_);
      if (!cursor.is_null()) loader.restore(cursor);
      for (size_t i = 0; i < per_step; ++i) {
        const LoadedSequence s = loader.next();
        if (i % world_size == rank) sequences.emplace(s.number, s.describe);
      }
      EXPECT_TRUE(after.is_null() || after == loader.cursor());
      after = loader.cursor();
    }
    EXPECT_EQ(sequences.size(), per_step);
    cursor = after;
    return sequences;
  };
  nlohmann::json one, changing;
  for (size_t world_size : {1, 2, 4, 1, 4, 2}) EXPECT_EQ(step_of(one, 1), step_of(changing, world_size));
}

TEST_F(Blend, SkippedSequencesAreLeftOutAndTheOthersStayTheSame) {
  Loader all(options_), some(skipping("# a jump of the loss\n1\n 4-6 \n\n5-7\n"));
  std::vector<LoadedSequence> expected;
  for (int64_t i = 0; i < 20; ++i) {
    const LoadedSequence s = all.next();
    EXPECT_EQ(s.number, i);
    if (i != 1 && (i < 4 || i > 7)) expected.push_back(s);
  }
  for (const LoadedSequence& e : expected) {
    const LoadedSequence s = some.next();
    EXPECT_EQ(s.number, e.number);
    EXPECT_EQ(s.describe, e.describe);
    EXPECT_EQ(s.tokens, e.tokens);
  }
}

TEST_F(Blend, AListThatGrowsActsFromTheCursorOn) {
  Loader before(options_);
  for (int i = 0; i < 3; ++i) before.next();
  Loader after(skipping("0-3\n"));
  after.restore(before.cursor());
  EXPECT_EQ(after.next().number, 4);
  EXPECT_EQ(after.sequences_drawn(), 5);
}

TEST_F(Blend, SkippedSequencesAreNotRead) {
  write_dataset(f_ / "bad", 2, {32}, 999);
  Loader::Options o = skipping("0\n");
  o.datasets = {{f_ / "bad", 1}};
  o.vocabulary_size = 10;
  Loader loader(o);
  EXPECT_CONTAINS(error_of([&] { loader.next(); }), "id 999 is not in the model's vocabulary");
  EXPECT_EQ(loader.sequences_drawn(), 1);
}

TEST_F(Blend, SkipListsThatMakeNoSenseAreNamed) {
  EXPECT_CONTAINS(error_of([&] { Loader l(skipping("1\nx\n")); }), "skip:2: \"x\"; expected the index of a sequence, or FIRST-LAST");
  for (const std::string line : {"-1", "3-", "5-4", "1-2-3", "1 2", "99999999999999999999", "-"}) EXPECT_CONTAINS(error_of([&] { Loader l(skipping(line)); }), "skip:1: \"" + line);
  EXPECT_CONTAINS(error_of([&] { Loader l(skipping("0-1000000")); }), "skip: skips more than 1000000 sequences");
  EXPECT_CONTAINS(error_of([&] { Loader l(skipping("0-9223372036854775807")); }), "skips more than");
  EXPECT_CONTAINS(error_of([&] { Loader l(skipping("0-600000\n700000-1200000")); }), "skips more than");
  EXPECT_EQ(SkipList(skipping("0-600000\n1-999999\n5").skip).num_sequences(), 1000000);
  Loader::Options o = options_;
  o.skip = "/nowhere/skip";
  EXPECT_CONTAINS(error_of([&] { Loader l(o); }), "/nowhere/skip: cannot open");
}

TEST_F(Blend, DataOfTheSameSizeIsToldApart) {
  const nlohmann::json cursor = Loader(options_).cursor();
  write_dataset(f_ / "code", 40, {11, 3, 0, 50}, 0);
  Loader other(options_);
  EXPECT_CONTAINS(error_of([&] { other.restore(cursor); }), "code: has 40 documents and 640 tokens, index ");
}

// A place in one order is also a place in another, where documents would come twice or never.
TEST_F(Blend, ACursorOfAnotherOrderIsRefused) {
  const nlohmann::json cursor = Loader(options_).cursor();
  Loader::Options other = options_;
  other.seed = 6;
  EXPECT_CONTAINS(error_of([&] { Loader(other).restore(cursor); }), "data.seed: is 6, the checkpoint's documents are in the order of 5; expected 5, or a new run");
  other = options_;
  other.shuffle = false;
  EXPECT_CONTAINS(error_of([&] { Loader(other).restore(cursor); }), "data.shuffle: is false, the checkpoint's documents are in the order of true");
}

TEST_F(Blend, CursorsThatPointNowhereAreRefused) {
  Loader loader(options_);
  const nlohmann::json good = loader.cursor();
  EXPECT_EQ(error_of([&] { loader.restore(good); }), "accepted");
  const auto error_with = [&](const std::string& pointer, const nlohmann::json& value) {
    nlohmann::json j = good;
    j[nlohmann::json::json_pointer(pointer)] = value;
    return error_of([&] { loader.restore(j); });
  };
  EXPECT_CONTAINS(error_with("/sources/0/position", 40), "\"position\" is 40; expected an integer from 0 to 39");
  EXPECT_CONTAINS(error_with("/sources/0/position", -1), "\"position\" is -1");
  EXPECT_CONTAINS(error_with("/sources/2/offset", 200), "place in " + (f_ / "books") + ": \"offset\" is 200; expected an integer from 0 to 199");
  EXPECT_CONTAINS(error_with("/sources/0/documents", 41), "code: has 40 documents and 640 tokens");
  for (const std::string key : {"prefix", "documents", "tokens", "index", "epoch", "position", "offset", "drawn"}) {
    nlohmann::json j = good;
    j["sources"][0].erase(key);
    EXPECT_CONTAINS(error_of([&] { loader.restore(j); }), "code: \"" + key + "\" is missing");
  }
  EXPECT_CONTAINS(error_with("/seed", nullptr), "\"seed\" is missing");
  EXPECT_CONTAINS(error_with("/shuffle", 1), "data.shuffle: is true, the checkpoint's documents are in the order of 1");
  EXPECT_CONTAINS(error_with("/sources/1/drawn", "many"), "\"drawn\" is \"many\"");
  EXPECT_CONTAINS(error_with("/sources/1/drawn", INT64_MAX), "\"drawn\" is 9223372036854775807; expected an integer from 0 to 4611686018427387904");
  EXPECT_CONTAINS(error_with("/current", 3), "\"current\" is 3; expected an integer from -1 to 2");
  EXPECT_CONTAINS(error_with("/sources", nullptr), "\"sources\" is missing");
  EXPECT_CONTAINS(error_with("/sources", nlohmann::json::array()), "was trained on 0 data sets, the config names 3");
  EXPECT_CONTAINS(error_of([&] { loader.restore(nlohmann::json::array()); }), "the checkpoint's place in the data: expected a JSON object");
}

TEST(Permutation, TakesEveryValueOnceInAnOrderOfItsOwn) {
  for (int64_t n : {1, 2, 3, 4, 5, 16, 17, 255, 1000, 65537}) {
    std::vector<int> seen(static_cast<size_t>(n));
    const Permutation p(n, 3, 0), other(n, 4, 0), stream(n, 3, 1);
    int64_t same = 0, in_place = 0;
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_TRUE(p(i) >= 0 && p(i) < n);
      ++seen[static_cast<size_t>(p(i))];
      same += (p(i) == other(i)) + (p(i) == stream(i));
      in_place += p(i) == i;
    }
    EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(n), 1)) << n;
    // Of independent orders one value in n agrees, on average.
    EXPECT_TRUE(n < 255 || same + in_place < 20) << n;
  }
}

TEST(Permutation, PlacesAreSpreadEvenly) {
  // Where the first of 8 values goes under 8000 seeds: 1000 times to each place, within five standard deviations of 30.
  std::vector<int> count(8);
  for (uint64_t seed = 0; seed < 8000; ++seed) ++count[static_cast<size_t>(Permutation(8, seed, 0)(0))];
  for (int n : count) EXPECT_NEAR(n, 1000, 150);
}

TEST(Permutation, LargestSizes) {
  const int64_t n = (int64_t{1} << 40) + 7;
  const Permutation p(n, 1, 0);
  EXPECT_TRUE(p(n - 1) >= 0 && p(n - 1) < n);
  EXPECT_NE(p(0), p(n - 1));
}

}  // namespace
}  // namespace hyscale
