#include "data/indexed_dataset.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>

#include "core/digest.h"
#include "core/error.h"

namespace hyscale {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr int64_t kHeader = 9 + 8 + 1 + 8 + 8;
constexpr uint8_t kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8;

int64_t width_of(uint8_t dtype) {
  switch (dtype) {
    case kU8: case kI8: return 1;
    case kI16: case kU16: return 2;
    case kI32: return 4;
    case kI64: return 8;
    default: return 0;
  }
}

template <typename T>
void widen(const std::vector<char>& bytes, int32_t* to) {
  for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    // Ids that do not fit stay out of range, so that the vocabulary check names them.
    to[i] = static_cast<int32_t>(std::clamp<int64_t>(static_cast<int64_t>(value), -1, std::numeric_limits<int32_t>::max()));
  }
}

struct Header {
  uint8_t dtype;
  int64_t sequences, documents;
};

// The .idx has numbers at any byte.
template <typename T>
T number_at(const MappedFile& idx, int64_t offset) {
  T value;
  std::memcpy(&value, idx.data() + offset, sizeof value);
  return value;
}

Header read_header(const MappedFile& idx) {
  const std::string& path = idx.path();
  if (idx.size() < kHeader) throw UserError(concat(path, ": is truncated: ", idx.size(), " bytes, the header alone has ", kHeader));
  if (std::memcmp(idx.data(), kMagic, sizeof kMagic) != 0) throw UserError(path + ": is no Megatron index (it does not begin with MMIDIDX)");
  const auto version = number_at<uint64_t>(idx, 9), sequences = number_at<uint64_t>(idx, 18), documents = number_at<uint64_t>(idx, 26);
  const auto dtype = number_at<uint8_t>(idx, 17);
  if (version != 1) throw UserError(concat(path, ": version ", version, "; expected 1"));
  if (width_of(dtype) == 0) throw UserError(concat(path, ": token dtype code ", int{dtype}, "; expected an integer type"));
  const uint64_t room = static_cast<uint64_t>(idx.size() - kHeader);
  if (sequences > room / 12 || documents > room / 8 || sequences * 12 + documents * 8 > room)
    throw UserError(concat(path, ": is truncated or corrupt: ", sequences, " sequences and ", documents, " document marks do not fit into ", idx.size(), " bytes"));
  return {dtype, static_cast<int64_t>(sequences), static_cast<int64_t>(documents)};
}

}  // namespace

IndexedDataset::IndexedDataset(const std::string& prefix) : prefix_(prefix), bin_(File::open_to_read(prefix + ".bin")), idx_(prefix + ".idx") {
  const Header h = read_header(idx_);
  dtype_ = h.dtype;
  token_bytes_ = width_of(h.dtype);
  num_sequences_ = h.sequences;
  num_documents_ = h.documents - 1;
  const int64_t bin_bytes = bin_.size();
  for (int64_t i = 0; i < num_sequences_; ++i) {
    if (length(i) < 0 || offset(i) < 0 || offset(i) > bin_bytes || length(i) * token_bytes_ > bin_bytes - offset(i))
      throw UserError(concat(prefix, ".bin: is truncated or ", prefix, ".idx is corrupt: sequence ", i, " has ", length(i), " tokens of ", token_bytes_,
                             " bytes at byte ", offset(i), ", the .bin has ", bin_bytes, " bytes"));
    num_tokens_ += length(i);
    // What is read at once is sized by documents, and so by the sum of their sequences.
    if (num_tokens_ > bin_bytes / token_bytes_)
      throw UserError(concat(prefix, ".idx: is corrupt: sequences up to ", i, " have ", num_tokens_, " tokens, the .bin holds ", bin_bytes / token_bytes_));
  }
  bool rises = num_documents_ >= 0 && first_sequence(0) == 0 && first_sequence(num_documents_) == num_sequences_;
  for (int64_t d = 0; rises && d < num_documents_; ++d) rises = first_sequence(d) <= first_sequence(d + 1);
  if (!rises) throw UserError(concat(prefix, ".idx: is corrupt: document marks do not rise from 0 to ", num_sequences_));
}

int32_t IndexedDataset::length(int64_t sequence) const { return number_at<int32_t>(idx_, kHeader + sequence * 4); }
int64_t IndexedDataset::offset(int64_t sequence) const { return number_at<int64_t>(idx_, kHeader + num_sequences_ * 4 + sequence * 8); }
int64_t IndexedDataset::first_sequence(int64_t document) const { return number_at<int64_t>(idx_, kHeader + num_sequences_ * 12 + document * 8); }

std::string IndexedDataset::index_digest() const {
  Digest digest;
  digest.add(idx_.data(), static_cast<size_t>(idx_.size()));
  return digest.text();
}

const char* IndexedDataset::dtype_name() const {
  switch (dtype_) {
    case kU8: return "u8";
    case kI8: return "i8";
    case kI16: return "i16";
    case kI32: return "i32";
    case kI64: return "i64";
    default: return "u16";
  }
}

int64_t IndexedDataset::document_tokens(int64_t document) const {
  HYSCALE_CHECK(document >= 0 && document < num_documents_, "document ", document, " of ", num_documents_);
  int64_t n = 0;
  for (int64_t s = first_sequence(document); s < first_sequence(document + 1); ++s) n += length(s);
  return n;
}

void IndexedDataset::read_sequence(int64_t sequence, int64_t first, int64_t count, int32_t* to) const {
  std::vector<char> bytes(static_cast<size_t>(count * token_bytes_));
  bin_.read_at(offset(sequence) + first * token_bytes_, bytes.data(), bytes.size());
  switch (dtype_) {
    case kU8: return widen<uint8_t>(bytes, to);
    case kI8: return widen<int8_t>(bytes, to);
    case kI16: return widen<int16_t>(bytes, to);
    case kI32: return widen<int32_t>(bytes, to);
    case kI64: return widen<int64_t>(bytes, to);
    default: return widen<uint16_t>(bytes, to);
  }
}

void IndexedDataset::read(int64_t document, int64_t first, int64_t count, int64_t vocabulary_size, int32_t* to) const {
  HYSCALE_CHECK(first >= 0 && count >= 0 && first + count <= document_tokens(document), "tokens ", first, " + ", count, " of document ", document);
  int64_t skip = first, left = count, done = 0;
  for (int64_t s = first_sequence(document); left > 0; ++s) {
    const int64_t tokens = length(s), take = std::min(left, tokens - std::min(skip, tokens));
    if (take > 0) read_sequence(s, skip, take, to + done);
    skip = std::max<int64_t>(0, skip - tokens);
    done += take;
    left -= take;
  }
  for (int64_t i = 0; i < count; ++i)
    if (to[i] < 0 || to[i] >= vocabulary_size)
      throw UserError(concat(prefix_, ".bin: document ", document, ", token ", first + i, ": id ", to[i], " is not in the model's vocabulary of ", vocabulary_size,
                             "; was the data set built with another tokenizer?"));
}

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, int64_t vocabulary_size)
    : prefix_(prefix), bin_(File::create(prefix + ".bin.partial")), narrow_(vocabulary_size < 65500) {}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  std::error_code ignored;
  if (!finished_) std::filesystem::remove(bin_.path(), ignored);
}

void IndexedDatasetWriter::add_document(const std::vector<int32_t>& tokens) {
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) throw UserError(concat(prefix_, ": a document of ", tokens.size(), " tokens; the format holds 2^31 - 1"));
  offsets_.push_back(num_tokens_ * (narrow_ ? 2 : 4));
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  num_tokens_ += static_cast<int64_t>(tokens.size());
  if (!narrow_) return bin_.write(tokens.data(), tokens.size() * 4);
  const std::vector<uint16_t> narrow(tokens.begin(), tokens.end());
  bin_.write(narrow.data(), narrow.size() * 2);
}

void IndexedDatasetWriter::finish() {
  bin_.sync();
  bin_.close();
  const uint64_t n = lengths_.size(), m = n + 1, version = 1;
  const uint8_t dtype = narrow_ ? kU16 : kI32;
  std::string text(kMagic, sizeof kMagic);
  const auto append = [&](const void* from, size_t bytes) { text.append(static_cast<const char*>(from), bytes); };
  append(&version, 8);
  append(&dtype, 1);
  append(&n, 8);
  append(&m, 8);
  append(lengths_.data(), n * 4);
  append(offsets_.data(), n * 8);
  for (int64_t d = 0; d <= static_cast<int64_t>(n); ++d) append(&d, 8);
  // No reader may take the new tokens for those of an old index; one that has both open keeps the old ones.
  std::error_code ignored;
  std::filesystem::remove(prefix_ + ".idx", ignored);
  rename_file(bin_.path(), prefix_ + ".bin");
  finished_ = true;
  write_text_file(prefix_ + ".idx", text);
}

}  // namespace hyscale
