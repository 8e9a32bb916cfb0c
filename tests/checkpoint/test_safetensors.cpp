#include "checkpoint/safetensors.h"

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "tests/support/processes.h"

namespace hyscale {
namespace {

using test::TemporaryFolder;

std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &size, 8);
  return text + header + data;
}

std::string error_of(const std::string& contents) {
  const TemporaryFolder f;
  test::write_file(f / "x.safetensors", contents);
  return test::error_of([&] { SafetensorsReader(f / "x.safetensors"); });
}

TEST(Safetensors, RoundTripInPieces) {
  const TemporaryFolder f;
  const float values[] = {1, -2, 3.5f, 0, 5, 6};
  SafetensorsWriter w(f / "x", {{"b", "F32", {2, 2}}, {"a", "F32", {}}, {"none", "F32", {0, 3}}, {"c", "F32", {1}}});
  w.append(values, 12);
  w.append(values + 3, 12);
  w.finish();
  const SafetensorsReader r(f / "x");
  EXPECT_EQ(r.read_f32("b"), (std::vector<float>{1, -2, 3.5f, 0}));
  EXPECT_EQ(r.read_f32("a"), std::vector<float>{5});
  EXPECT_TRUE(r.read_f32("none").empty());
}

TEST(Safetensors, HalfPrecisionFormats) {
  const TemporaryFolder f;
  const uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7c00, 0x7e00, 0x3f80};  // 1, -2, 2^-24, inf, nan; bf16 1
  SafetensorsWriter w(f / "x", {{"h", "F16", {5}}, {"b", "BF16", {1}}});
  w.append(halves, 12);
  w.finish();
  const std::vector<float> h = SafetensorsReader(f / "x").read_f32("h");
  EXPECT_EQ(h[0], 1);
  EXPECT_EQ(h[1], -2);
  EXPECT_EQ(h[2], std::ldexp(1.0f, -24));
  EXPECT_TRUE(std::isinf(h[3]) && std::isnan(h[4]));
  EXPECT_EQ(SafetensorsReader(f / "x").read_f32("b")[0], 1);
}

TEST(Safetensors, BadFilesAreNamedWithWhatIsWrong) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(error_of(file_of(good, std::string(8, 'x'))), "accepted");
  EXPECT_CONTAINS(error_of("abc"), "only 3 bytes");
  EXPECT_CONTAINS(error_of(file_of(good, std::string(7, 'x'))), "tensor \"a\" lies at bytes 0 to 8 of 7: the file is truncated");
  EXPECT_CONTAINS(error_of(file_of(good, std::string(9, 'x'))), "1 bytes belong to no tensor");
  EXPECT_CONTAINS(error_of(std::string(8, '\xff') + "{}"), "header of 18446744073709551615 bytes");
  EXPECT_CONTAINS(error_of(file_of("{]", "")), "x.safetensors: header: is not valid JSON");
  EXPECT_CONTAINS(error_of(file_of("[]", "")), "the header is no JSON object");
  EXPECT_CONTAINS(error_of(file_of(R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", std::string(8, 'x'))), "unknown dtype \"F31\"");
  EXPECT_CONTAINS(error_of(file_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", std::string(8, 'x'))), "of shape [3] F32 has 8 bytes");
  EXPECT_CONTAINS(error_of(file_of(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", std::string(8, 'x'))), "-2 is no size");
  EXPECT_CONTAINS(error_of(file_of(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", std::string(8, 'x'))), "has 8 bytes");
  EXPECT_CONTAINS(error_of(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", std::string(6, 'x'))),
                  "overlap or leave a gap");
  EXPECT_CONTAINS(error_of(file_of(R"({"a":{"dtype":"F32","shape":[2]}})", "")), "needs dtype, shape and data_offsets");
}

// Values that are printed in messages must not take a stack frame per bracket.
TEST(Safetensors, NestingIsLimited) {
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  EXPECT_CONTAINS(error_of(file_of(R"({"a":{"dtype":"F32","shape":[)" + deep + R"(],"data_offsets":[0,8]}})", "")), "x.safetensors: header: nests deeper than 64 levels");
  EXPECT_CONTAINS(error_of(file_of(R"({"__metadata__":)" + deep + "}", "")), "nests deeper than 64 levels");
}

TEST(Safetensors, ShapesThatMultiplyToNothingOrTooMuch) {
  EXPECT_EQ(error_of(file_of(R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,8],"data_offsets":[0,0]}})", "")), "accepted");
  EXPECT_CONTAINS(error_of(file_of(R"({"a":{"dtype":"F32","shape":[4611686018427387904,8,0],"data_offsets":[0,0]}})", "")), "has 0 bytes");
  EXPECT_CONTAINS(error_of(file_of(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0]}})", "")), "is no size");
  EXPECT_CONTAINS(error_of(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", "")), "is no size");
  EXPECT_CONTAINS(error_of(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "xxxx")), "lies at bytes 4 to 0");
}

TEST(Safetensors, MissingTensorsAreNamed) {
  const SafetensorsReader r("tests/goldens/glm51/model.safetensors");
  EXPECT_CONTAINS(test::error_of([&] { r.info("model.layers.9.x"); }), "tests/goldens/glm51/model.safetensors: has no tensor \"model.layers.9.x\"");
}

}  // namespace
}  // namespace hyscale
