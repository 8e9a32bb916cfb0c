// A tokenizer.json, and what it makes of a text that has something for most patterns.
#include "data/tokenizer.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hyscale;
  const std::string path = fuzz::write_input("tokenizer.json", fuzz::text_of(data, size));
  fuzz::expect_no_other_error([&] {
    const auto tokenizer = make_tokenizer(path);
    tokenizer->decode(tokenizer->encode("It's 12345,  e\u0301\u00e9 \u952e <|endoftext|>\r\n\tx_1 \U0001f642"));
    tokenizer->decode({-1, 0, INT32_MAX});
  });
  return 0;
}
