// config.json of a model, read by every family.
#include "models/deepseek_v4/v4_config.h"
#include "models/glm/glm_config.h"
#include "models/qwen/qwen_config.h"
#include "models/registry.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hyscale;
  const std::string path = fuzz::write_input("config.json", fuzz::text_of(data, size));
  fuzz::expect_no_other_error([&] { parse_glm_config(read_hf_config(path), path); });
  fuzz::expect_no_other_error([&] { parse_v4_config(read_hf_config(path), path); });
  fuzz::expect_no_other_error([&] { parse_qwen_config(read_hf_config(path), path); });
  return 0;
}
