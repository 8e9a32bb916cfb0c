#include "data/indexed_dataset.h"

#include <algorithm>
#include <cstring>
#include <limits>

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

Header read_header(const File& idx) {
  const std::string& path = idx.path();
  if (idx.size() < kHeader) throw UserError(concat(path, ": is truncated: ", idx.size(), " bytes, the header alone has ", kHeader));
  char raw[kHeader];
  idx.read_at(0, raw, sizeof raw);
  if (std::memcmp(raw, kMagic, sizeof kMagic) != 0) throw UserError(path + ": is no Megatron index (it does not begin with MMIDIDX)");
  uint64_t version, sequences, documents;
  std::memcpy(&version, raw + 9, 8);
  std::memcpy(&sequences, raw + 18, 8);
  std::memcpy(&documents, raw + 26, 8);
  const uint8_t dtype = static_cast<uint8_t>(raw[17]);
  if (version != 1) throw UserError(concat(path, ": version ", version, "; expected 1"));
  if (width_of(dtype) == 0) throw UserError(concat(path, ": token dtype code ", int{dtype}, "; expected an integer type"));
  const uint64_t room = static_cast<uint64_t>(idx.size() - kHeader);
  if (sequences > room / 12 || documents > room / 8 || sequences * 12 + documents * 8 > room)
    throw UserError(concat(path, ": is truncated or corrupt: ", sequences, " sequences and ", documents, " document marks do not fit into ", idx.size(), " bytes"));
  return {dtype, static_cast<int64_t>(sequences), static_cast<int64_t>(documents)};
}

}  // namespace

IndexedDataset::IndexedDataset(const std::string& prefix) : prefix_(prefix), bin_(File::open_to_read(prefix + ".bin")) {
  const File idx = File::open_to_read(prefix + ".idx");
  const Header h = read_header(idx);
  dtype_ = h.dtype;
  token_bytes_ = width_of(h.dtype);
  lengths_.resize(static_cast<size_t>(h.sequences));
  offsets_.resize(lengths_.size());
  document_starts_.resize(static_cast<size_t>(h.documents));
  idx.read_at(kHeader, lengths_.data(), lengths_.size() * 4);
  idx.read_at(kHeader + h.sequences * 4, offsets_.data(), offsets_.size() * 8);
  idx.read_at(kHeader + h.sequences * 12, document_starts_.data(), document_starts_.size() * 8);
  const int64_t bin_bytes = bin_.size();
  for (size_t i = 0; i < lengths_.size(); ++i) {
    if (lengths_[i] < 0 || offsets_[i] < 0 || offsets_[i] > bin_bytes || lengths_[i] * token_bytes_ > bin_bytes - offsets_[i])
      throw UserError(concat(prefix, ".bin: is truncated or ", prefix, ".idx is corrupt: sequence ", i, " has ", lengths_[i], " tokens of ", token_bytes_,
                             " bytes at byte ", offsets_[i], ", the .bin has ", bin_bytes, " bytes"));
    num_tokens_ += lengths_[i];
  }
  if (document_starts_.empty() || document_starts_.front() != 0 || document_starts_.back() != h.sequences ||
      !std::is_sorted(document_starts_.begin(), document_starts_.end()))
    throw UserError(concat(prefix, ".idx: is corrupt: document marks do not rise from 0 to ", h.sequences));
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
  int64_t n = 0;
  for (int64_t s = document_starts_.at(static_cast<size_t>(document)); s < document_starts_.at(static_cast<size_t>(document + 1)); ++s)
    n += lengths_[static_cast<size_t>(s)];
  return n;
}

void IndexedDataset::read_sequence(int64_t sequence, int64_t first, int64_t count, int32_t* to) const {
  std::vector<char> bytes(static_cast<size_t>(count * token_bytes_));
  bin_.read_at(offsets_[static_cast<size_t>(sequence)] + first * token_bytes_, bytes.data(), bytes.size());
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
  for (int64_t s = document_starts_[static_cast<size_t>(document)]; left > 0; ++s) {
    const int64_t length = lengths_[static_cast<size_t>(s)], take = std::min(left, length - std::min(skip, length));
    if (take > 0) read_sequence(s, skip, take, to + done);
    skip = std::max<int64_t>(0, skip - length);
    done += take;
    left -= take;
  }
  for (int64_t i = 0; i < count; ++i)
    if (to[i] < 0 || to[i] >= vocabulary_size)
      throw UserError(concat(prefix_, ".bin: document ", document, ", token ", first + i, ": id ", to[i], " is not in the model's vocabulary of ", vocabulary_size,
                             "; was the data set built with another tokenizer?"));
}

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, int64_t vocabulary_size)
    : prefix_(prefix), bin_(File::create(prefix + ".bin")), narrow_(vocabulary_size < 65500) {}

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
  write_text_file(prefix_ + ".idx", text);
}

}  // namespace hyscale
