// A safetensors file, and every tensor that it claims to hold.
#include "checkpoint/safetensors.h"

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hyscale;
  const std::string path = fuzz::write_input("model.safetensors", fuzz::text_of(data, size));
  fuzz::expect_no_other_error([&] {
    const SafetensorsReader reader(path);
    for (const auto& tensor : reader.tensors()) {
      const SafetensorInfo& info = tensor.second;
      HYSCALE_CHECK(info.elements() * safetensors_dtype_bytes(info.dtype) == info.end - info.begin, tensor.first);
      fuzz::expect_no_other_error([&] { reader.read_f32(tensor.first); });
      fuzz::expect_no_other_error([&] { reader.read_i64(tensor.first); });
    }
  });
  return 0;
}
