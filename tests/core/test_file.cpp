#include "core/file.h"

#include "core/error.h"
#include "tests/support/processes.h"

namespace hyscale {
namespace {

using test::TemporaryFolder;

TEST(MappedFile, HoldsTheBytesOfTheFileThatHadTheNameAtFirst) {
  const TemporaryFolder f;
  test::write_file(f / "a", std::string("one\0two", 7));
  test::write_file(f / "empty", "");
  const MappedFile a(f / "a"), empty(f / "empty");
  write_text_file(f / "a", "x");
  EXPECT_EQ(std::string(a.data(), static_cast<size_t>(a.size())), std::string("one\0two", 7));
  EXPECT_EQ(empty.size(), 0);
}

TEST(MappedFile, AFileThatIsShortenedEndsTheProcessWithItsName) {
  const TemporaryFolder f;
  test::write_file(f / "a", std::string(100000, 'x'));
  test::write_file(f / "b", "y");
  EXPECT_EXIT(
      {
        const MappedFile b(f / "b");
        const MappedFile a(f / "a");
        std::filesystem::resize_file(f / "a", 0);
        std::exit(*static_cast<const volatile char*>(a.data() + 50000));
      },
      testing::ExitedWithCode(2), f / "a: cannot be read any more: it was shortened");
}

TEST(MappedFile, WhatIsNoFileIsNamed) {
  const TemporaryFolder f;
  for (const std::string& path : {f / "missing", f.path()}) EXPECT_CONTAINS(test::error_of([&] { MappedFile m(path); }), path + ": ");
}

}  // namespace
}  // namespace hyscale
