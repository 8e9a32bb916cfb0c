#include "data/tokenizer.h"

#include <sentencepiece_processor.h>

#include "core/error.h"

namespace hyscale {
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
  explicit SentencePieceTokenizer(const std::string& path) {
    const auto status = processor_.Load(path);
    if (!status.ok()) throw UserError(concat(path, ": is no SentencePiece model: ", status.ToString()));
  }
  std::vector<int32_t> encode(const std::string& text) const override {
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
  int32_t end_of_document() const override { return processor_.eos_id(); }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  return std::make_unique<SentencePieceTokenizer>(name);
}

}  // namespace hyscale
