// A loader's place in two data sets, as a checkpoint holds it; what restores is drawn from.
#include "core/json.h"
#include "data/loader.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

std::string write_dataset(const std::string& name, int32_t id, int64_t documents) {
  const std::string bin = hyscale::fuzz::write_input(name + ".bin", ""), prefix = bin.substr(0, bin.size() - 4);
  hyscale::IndexedDatasetWriter writer(prefix, 300);
  for (int64_t d = 0; d < documents; ++d) writer.add_document(std::vector<int32_t>(static_cast<size_t>(d % 5), id));
  writer.finish();
  return prefix;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hyscale;
  static const std::string a = write_dataset("a", 1, 7), b = write_dataset("b", 2, 12);
  fuzz::expect_no_other_error([&] {
    Loader loader({{{a, 1}, {b, 2}}, 16, 300, 5, true});
    loader.restore(parse_json(fuzz::text_of(data, size), "cursor"));
    for (int i = 0; i < 3; ++i) loader.next();
    loader.restore(loader.cursor());
  });
  return 0;
}
