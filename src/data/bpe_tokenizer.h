// Hugging Face tokenizer.json files with byte-level BPE, as GLM, DeepSeek and Qwen release them.
//
// encode: added tokens are cut out of the text; what lies between is normalised, cut into words by the pre-tokenizer's
// patterns, and merged. Nothing is added at the beginning or end: post_processor, truncation and padding, which concern
// prompts and batches, are not read. decode is the inverse on bytes, added tokens included, without Hugging Face's repairs
// of text that ends inside a character; ids of no token are left out.
#pragma once
#include <map>
#include <nlohmann/json.hpp>

#include "data/bpe_model.h"
#include "data/split_pattern.h"
#include "data/tokenizer.h"
#include "data/unicode.h"

namespace hyscale {

// Tokens that are matched in text before anything else is.
class AddedTokens {
 public:
  void add(const std::string& content, int32_t id);
  // Calls `text` and `token` in order; of tokens that begin at one place the longest is taken.
  void split(std::string_view all, const std::function<void(std::string_view)>& text, const std::function<void(int32_t)>& token) const;

 private:
  std::array<std::map<std::string, int32_t, std::greater<>>, 256> by_first_byte_;  // a prefix of another comes after it
};

class BpeTokenizer : public Tokenizer {
 public:
  // end_of_document: the token that ends documents; empty: eos_token of the tokenizer_config.json beside the file, if there
  // is one. Throws UserError naming the file and the key for what is malformed, and by name for what would make other ids:
  // another model than byte-level BPE, normalisers other than Unicode's forms, pre-tokenizers other than Split, Digits and a
  // final ByteLevel, added tokens that strip or match whole words only.
  explicit BpeTokenizer(const std::string& path, const std::string& end_of_document = "");

  // Throws UserError naming the byte for text that is not UTF-8.
  std::vector<int32_t> encode(const std::string& text) const override;
  std::string decode(const std::vector<int32_t>& ids) const override;
  int64_t vocabulary_size() const override { return highest_id_ + 1; }
  int32_t end_of_document() const override { return end_of_document_; }

 private:
  struct Step {
    SplitPattern pattern;
    bool keep_matches = true, keep_gaps = true;
  };
  BpeTokenizer(const std::string& path, const nlohmann::json& file, const std::string& end_of_document);
  void read_added_tokens(const nlohmann::json& list);
  void read_normalizer(const nlohmann::json& step);
  void read_pre_tokenizer(const std::vector<nlohmann::json>& steps);
  Step split_step(const nlohmann::json& step, const std::string& place) const;
  int32_t find_token(const std::string& token, const std::string& place) const;
  std::string normalized(std::string_view text) const;
  void encode_words(std::string_view text, std::vector<int32_t>& ids) const;

  std::string path_;
  BpeModel model_;
  std::vector<NormalForm> forms_;
  std::vector<Step> steps_;
  std::map<std::string, int32_t> added_ids_;
  std::map<int32_t, std::string> added_contents_;
  AddedTokens in_raw_text_, in_normalized_text_;
  int32_t end_of_document_ = -1;
  int64_t highest_id_ = -1;
};

}  // namespace hyscale
