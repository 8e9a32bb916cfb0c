// Text to token ids.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace hyscale {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int32_t> encode(const std::string& text) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  virtual int64_t vocabulary_size() const = 0;
  virtual int32_t end_of_document() const = 0;  // -1: the tokenizer has no such id
};

// "byte": ids 0..255 are bytes and 256 ends a document. Otherwise the path of a SentencePiece model.
// Throws UserError naming the file when it cannot be read.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

}  // namespace hyscale
