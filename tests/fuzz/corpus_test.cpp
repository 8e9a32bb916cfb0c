// A target over its corpus, and over each of its files cut short and with single bytes changed.
#include <algorithm>

#include "tests/fuzz/fuzz_target.h"

namespace hyscale {
namespace {

void run(const std::string& input) { LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()); }

std::vector<std::string> corpus() {
  std::vector<std::string> inputs;
  for (const auto& entry : std::filesystem::directory_iterator("tests/fuzz/corpus/" HYSCALE_FUZZ_TARGET)) inputs.push_back(test::read_file(entry.path().string()));
  return inputs;
}

TEST(FuzzCorpus, EveryFileIsReadOrRefused) {
  EXPECT_FALSE(corpus().empty());
  for (const std::string& input : corpus()) EXPECT_NO_THROW(run(input));
}

TEST(FuzzCorpus, DamagedFilesAreReadOrRefused) {
  for (const std::string& input : corpus()) {
    const size_t step = std::max<size_t>(1, input.size() / 50);
    for (size_t at = 0; at < input.size(); at += step) {
      EXPECT_NO_THROW(run(input.substr(0, at)));
      std::string changed = input;
      changed[at] = static_cast<char>(changed[at] ^ 0x80);
      EXPECT_NO_THROW(run(changed));
    }
  }
}

}  // namespace
}  // namespace hyscale
