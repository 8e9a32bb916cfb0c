// What the fuzz targets share. A target hands its input to a reader of files that may come from anyone; the reader may refuse
// it with a UserError, and any other exception, crash or large allocation is a finding. libFuzzer runs the targets in the
// preset `fuzz` (scripts/fuzz.sh); in other builds tests run them over tests/fuzz/corpus/<target>.
#pragma once
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

#include "core/error.h"
#include "tests/support/processes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace hyscale::fuzz {

inline std::string text_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// The path of a file with these contents; the next of the same name takes its place.
inline std::string write_input(const std::string& name, const std::string& contents) {
  static const test::TemporaryFolder folder;
  std::ofstream(folder / name, std::ios::binary) << contents;
  return folder / name;
}

template <typename Function>
void expect_no_other_error(Function function) {
  try {
    function();
  } catch (const UserError&) {
  }
}

}  // namespace hyscale::fuzz
