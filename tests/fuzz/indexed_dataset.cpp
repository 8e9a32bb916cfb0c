// An .idx beside a .bin of 4 KiB, and every document that it claims to hold.
#include "data/indexed_dataset.h"

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hyscale;
  static const std::string bin = fuzz::write_input("data.bin", std::string(4096, '\1'));
  const std::string idx = fuzz::write_input("data.idx", fuzz::text_of(data, size));
  fuzz::expect_no_other_error([&] {
    const IndexedDataset dataset(idx.substr(0, idx.size() - 4));
    for (int64_t d = 0; d < dataset.num_documents(); ++d) {
      std::vector<int32_t> ids(static_cast<size_t>(dataset.document_tokens(d)));
      dataset.read(d, 0, dataset.document_tokens(d), INT32_MAX, ids.data());
    }
  });
  return 0;
}
