// A target over its corpus, and over each of its files cut short and with single bytes changed.
#include <algorithm>

#include "tests/fuzz/fuzz_target.h"

namespace hyscale {
namespace {

void run(const std::string& input) { LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()); }

// Of a target by name, so that the programs of all targets together have each test once.
class FuzzCorpus : public testing::TestWithParam<std::string> {
 protected:
  FuzzCorpus() {
    for (const auto& entry : std::filesystem::directory_iterator("tests/fuzz/corpus/" + GetParam())) inputs_.push_back(test::read_file(entry.path().string()));
  }
  std::vector<std::string> inputs_;
};

TEST_P(FuzzCorpus, EveryFileIsReadOrRefused) {
  EXPECT_FALSE(inputs_.empty());
  for (const std::string& input : inputs_) EXPECT_NO_THROW(run(input));
}

TEST_P(FuzzCorpus, DamagedFilesAreReadOrRefused) {
  for (const std::string& input : inputs_) {
    const size_t step = std::max<size_t>(1, input.size() / 50);
    for (size_t at = 0; at < input.size(); at += step) {
      EXPECT_NO_THROW(run(input.substr(0, at)));
      std::string changed = input;
      changed[at] = static_cast<char>(changed[at] ^ 0x80);
      EXPECT_NO_THROW(run(changed));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, FuzzCorpus, testing::Values(HYSCALE_FUZZ_TARGET), [](const auto& i) { return i.param; });

}  // namespace
}  // namespace hyscale
