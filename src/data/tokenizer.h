// Text to token ids.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace hyscale {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int32_t> encode(const std::string& text) const = 0;  // UserError for text that the tokenizer does not take
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  virtual int64_t vocabulary_size() const = 0;
  virtual int32_t end_of_document() const = 0;  // -1: the tokenizer has no such id
};

// "byte": ids 0..255 are bytes and 256 ends a document. Otherwise a path: of a tokenizer.json or a folder that holds one (see
// bpe_tokenizer.h), or of a SentencePiece model. `end_of_document`: the text of the token that ends documents, where the
// files do not say or say another. Throws UserError naming the file when it cannot be read, or has no such token.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& end_of_document = "");

}  // namespace hyscale
