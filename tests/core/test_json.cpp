#include "core/json.h"

#include "tests/support/processes.h"

namespace hyscale {
namespace {

using test::error_of;

TEST(Json, TextThatIsNoneIsNamedWithItsFile) {
  for (const std::string text : {"", "{", "{} x", "\"\xff\"", "01", "[1,]", "{\"a\":1e999}"})
    EXPECT_CONTAINS(error_of([&] { parse_json(text, "x.json"); }), "x.json: is not valid JSON");
  EXPECT_EQ(error_of([] { parse_json("{", "x.json"); }).substr(0, 48), "x.json: is not valid JSON: parse error at line 1");
  EXPECT_CONTAINS(error_of([] { read_json_file("/nowhere.json"); }), "/nowhere.json: cannot open");
}

TEST(Json, NestingIsLimited) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(error_of([&] { parse_json(nested(64), "x.json"); }), "accepted");
  EXPECT_EQ(error_of([&] { parse_json(nested(1000000), "x.json"); }), "x.json: nests deeper than 64 levels");
}

TEST(Json, ReaderNamesFileKeyAndValue) {
  const nlohmann::json j = parse_json(R"({"n": 5, "big": 18446744073709551615, "half": 0.5, "huge": 1e300, "word": "x", "null": null})", "x.json");
  const JsonReader r(j, "x.json");
  EXPECT_EQ(r.integer("n", 0), 5);
  EXPECT_EQ(r.text("word"), "x");
  EXPECT_EQ(r.number("half"), 0.5);
  EXPECT_EQ(error_of([&] { r.integer("n", 6, 9); }), "x.json: \"n\" is 5; expected an integer from 6 to 9");
  EXPECT_EQ(error_of([&] { r.integer("big", 0, INT64_MAX); }), "x.json: \"big\" is 18446744073709551615; expected an integer from 0 to 9223372036854775807");
  EXPECT_EQ(error_of([&] { r.integer("half", 0); }), "x.json: \"half\" is 0.5; expected an integer");
  EXPECT_EQ(error_of([&] { r.number("huge"); }), "x.json: \"huge\" is 1e+300; expected a number that f32 holds");
  EXPECT_EQ(error_of([&] { r.text("n"); }), "x.json: \"n\" is 5; expected a string");
  EXPECT_EQ(error_of([&] { r.raw("null"); }), "x.json: \"null\" is missing");
}

TEST(Json, WordsAreCountedAndComeFromTheChoices) {
  const nlohmann::json j = parse_json(R"({"w": ["a", "b", "a"], "mixed": ["a", 3], "word": "a"})", "x.json");
  const JsonReader r(j, "x.json");
  EXPECT_EQ(r.words("w", 3, {"a", "b"}), (std::vector<std::string>{"a", "b", "a"}));
  EXPECT_EQ(error_of([&] { r.words("w", 2, {"a", "b"}); }), "x.json: \"w\" is [\"a\",\"b\",\"a\"]; expected a list of 2 entries");
  EXPECT_EQ(error_of([&] { r.words("w", 3, {"a", "c"}); }), "x.json: \"w[1]\" is \"b\"; expected one of [\"a\",\"c\"]");
  EXPECT_EQ(error_of([&] { r.words("mixed", 2, {"a"}); }), "x.json: \"mixed[1]\" is 3; expected one of [\"a\"]");
  EXPECT_EQ(error_of([&] { r.words("word", 1, {"a"}); }), "x.json: \"word\" is \"a\"; expected a list of 1 entries");
}

}  // namespace
}  // namespace hyscale
