// Byte-level BPE, the "model" of a tokenizer.json: a vocabulary of byte strings and an ordered list of merges.
//
// A word starts as its bytes, one token each; the adjacent pair whose merge comes first in the list is joined, the leftmost
// one among equals, until no pair has a merge (Sennrich et al. 2016, on bytes as in GPT-2).
#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hyscale {

class BpeModel {
 public:
  static constexpr int64_t kHighestId = (int64_t{1} << 30) - 1;

  // `model`: vocab, merges ("a b" or ["a", "b"]), ignore_merges. Throws UserError beginning with `place`: another type, byte
  // fallback, dropout, prefixes or suffixes of subwords; ids given twice; merges of tokens that are not in the vocabulary;
  // bytes of UTF-8 without a token.
  BpeModel(const nlohmann::json& model, const std::string& place);

  // Appends the ids of a word's tokens.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;
  // The bytes of a token; null for an id that has none.
  const std::string* bytes(int32_t id) const;
  // The id of a token as the vocabulary spells it, or -1.
  int32_t id_of(const std::string& token) const;
  int32_t highest_id() const { return highest_id_; }

 private:
  struct Merge {
    int32_t rank, id;
  };
  void read_vocabulary(const nlohmann::json& vocabulary);
  void read_merges(const nlohmann::json& merges);
  const Merge* merge_of(int32_t left, int32_t right) const;
  void merge_all(std::string_view word, std::vector<int32_t>& ids) const;

  std::string place_;
  bool ignore_merges_ = false;  // a word that is a token is that token, whatever the merges would make of it
  int32_t highest_id_ = -1;
  std::unordered_map<std::string, int32_t> ids_;        // as the vocabulary spells them
  std::unordered_map<std::string, int32_t> id_of_bytes_;
  std::unordered_map<int32_t, std::string> bytes_;
  std::unordered_map<uint64_t, Merge> merges_;          // by both ids
  std::array<int32_t, 256> id_of_byte_;
};

}  // namespace hyscale
