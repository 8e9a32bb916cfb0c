// Text to a token data set: plain files (one document each), JSON lines (one document per line), both also packed by gzip, and
// folders of all these.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace hyscale {

struct BuildOptions {
  std::vector<std::string> inputs;      // files and folders; folders are read in the order of their paths
  std::string output;                   // prefix of .bin and .idx
  std::string json_key = "text";        // of .jsonl files
  bool append_end_of_document = true;
  double validation_fraction = 0;       // this share of the documents goes to OUTPUT-validation instead
};
struct BuildReport {
  int64_t documents = 0, tokens = 0, empty_documents = 0, binary_files = 0;
  int64_t validation_documents = 0, validation_tokens = 0;
};

// Empty documents are left out and counted, and so are files of a folder that hold NUL bytes. Throws UserError naming file
// and line for unreadable input, a JSON line without the key, packing other than gzip, or nothing to write.
BuildReport build_dataset(const BuildOptions&, const Tokenizer&);

}  // namespace hyscale
