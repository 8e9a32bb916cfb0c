// The YAML of a run, and what the program prints of it.
#include "config/config.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hyscale;
  const std::string path = fuzz::write_input("run.yaml", fuzz::text_of(data, size));
  fuzz::expect_no_other_error([&] { config_yaml(read_config(path)); });
  // The same text as the value of an override.
  const std::string known = fuzz::write_input("known.yaml", "model: {config: m}\ndata: {train: [d], sequence_tokens: 1}\ntrain: {steps: 1}\n");
  fuzz::expect_no_other_error([&] { read_config(known, {"data.train=" + fuzz::text_of(data, size)}); });
  return 0;
}
