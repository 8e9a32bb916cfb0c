#include "data/tokenizer.h"

#include <sentencepiece_processor.h>

#include <filesystem>

#include "core/error.h"
#include "data/unicode.h"
#include "data/bpe_tokenizer.h"

namespace hyscale {
namespace fs = std::filesystem;
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> encode(const std::string& text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }
  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (int32_t id : ids)
      if (id >= 0 && id < 256) text.push_back(static_cast<char>(id));
    return text;
  }
  int64_t vocabulary_size() const override { return 257; }
  int32_t end_of_document() const override { return 256; }
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& path, const std::string& end_of_document) {
    const auto status = processor_.Load(path);
    if (!status.ok()) throw UserError(concat(path, ": is no SentencePiece model: ", status.ToString()));
    end_of_document_ = end_of_document.empty() ? processor_.eos_id() : processor_.PieceToId(end_of_document);
    if (!end_of_document.empty() && (end_of_document_ < 0 || processor_.IsUnknown(end_of_document_)))
      throw UserError(concat(path, ": has no token \"", end_of_document, "\" (end of document)"));
  }
  std::vector<int32_t> encode(const std::string& text) const override {
    check_utf8(text);
    std::vector<int> ids;
    processor_.Encode(text, &ids);
    return {ids.begin(), ids.end()};
  }
  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    return text;
  }
  int64_t vocabulary_size() const override { return processor_.GetPieceSize(); }
  int32_t end_of_document() const override { return end_of_document_; }

 private:
  int32_t end_of_document_ = -1;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& end_of_document) {
  if (name == "byte" && !end_of_document.empty()) throw UserError(concat("tokenizer byte: has no token \"", end_of_document, "\"; documents end with id 256"));
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  const std::string path = fs::is_directory(name) ? name + "/tokenizer.json" : name;
  if (!fs::exists(path)) throw UserError(path + ": does not exist; expected byte, a tokenizer.json or its folder, or a SentencePiece model");
  if (path.ends_with(".json")) return std::make_unique<BpeTokenizer>(path, end_of_document);
  return std::make_unique<SentencePieceTokenizer>(path, end_of_document);
}

}  // namespace hyscale
