// A pattern, and after a line feed the text that it cuts: the pieces put together are the text.
#include "data/split_pattern.h"

#include "data/unicode.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hyscale;
  const std::string input = fuzz::text_of(data, size), pattern = input.substr(0, input.find('\n')), text = input.substr(std::min(size, pattern.size() + 1));
  fuzz::expect_no_other_error([&] {
    check_utf8(text);
    for (const auto kind : {SplitPattern::Kind::regex, SplitPattern::Kind::literal}) {
      std::string joined;
      SplitPattern(pattern, kind, "input").split(text, [&](std::string_view piece, bool) { joined += piece; });
      HYSCALE_CHECK(joined == text, "the pieces of ", text, " make ", joined);
    }
  });
  return 0;
}
