// Megatron's token data sets: PREFIX.bin (tokens) and PREFIX.idx (lengths and places).
//   .idx: "MMIDIDX\0\0", u64 version 1, u8 dtype, u64 sequences n, u64 m, i32 lengths[n], i64 byte offsets[n],
//         i64 documents[m] (first sequence of each document, and n at the end)
// HyScale writes one sequence per document; in files with several, the sequences of a document follow each other.
// The index is mapped, not read: a data set of a billion documents takes no memory of its own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/file.h"

namespace hyscale {

class IndexedDataset {
 public:
  // Throws UserError naming the file: missing, truncated, wrong magic, version or dtype, negative sizes, places outside
  // the .bin, more tokens than it holds, document list out of order.
  explicit IndexedDataset(const std::string& prefix);

  int64_t num_documents() const { return num_documents_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t document_tokens(int64_t document) const;
  // Tokens [first, first + count) of a document. Throws UserError naming file, document and place for an id that is
  // negative or not below `vocabulary_size`.
  void read(int64_t document, int64_t first, int64_t count, int64_t vocabulary_size, int32_t* to) const;
  const std::string& prefix() const { return prefix_; }
  const char* dtype_name() const;
  std::string index_digest() const;  // of all bytes of the .idx, as in file_digest

 private:
  int32_t length(int64_t sequence) const;
  int64_t offset(int64_t sequence) const;
  int64_t first_sequence(int64_t document) const;  // num_documents: one past the last sequence
  void read_sequence(int64_t sequence, int64_t first, int64_t count, int32_t* to) const;
  std::string prefix_;
  File bin_;
  MappedFile idx_;
  uint8_t dtype_ = 0;
  int64_t token_bytes_ = 0, num_tokens_ = 0, num_sequences_ = 0, num_documents_ = 0;
};

class IndexedDatasetWriter {
 public:
  // Ids take 16 bits when the vocabulary is below 65,500, else 32: Megatron's own rule.
  IndexedDatasetWriter(const std::string& prefix, int64_t vocabulary_size);
  ~IndexedDatasetWriter();
  void add_document(const std::vector<int32_t>& tokens);
  // Makes the .bin and the .idx. Until then an older data set of this name stays whole, also where one is never finished.
  void finish();
  int64_t num_documents() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  std::string prefix_;
  File bin_;
  bool narrow_, finished_ = false;
  int64_t num_tokens_ = 0;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> offsets_;
};

}  // namespace hyscale
