#include "data/bpe_model.h"

#include <limits>
#include <optional>
#include <queue>

#include "core/json.h"
#include "data/unicode.h"

namespace hyscale {
namespace {

// Vocabularies spell bytes as printable characters: those of Latin-1 that can be seen stand for themselves, the others for
// 256, 257, ... in order.
bool stands_for_itself(int byte) { return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE; }

std::unordered_map<char32_t, char> make_alphabet() {
  std::unordered_map<char32_t, char> byte_of;
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) byte_of[stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++] = static_cast<char>(byte);
  return byte_of;
}

// The bytes that a token spells, or none for one with other characters: those are found as added tokens only.
std::optional<std::string> bytes_of(const std::string& token) {
  static const std::unordered_map<char32_t, char> alphabet = make_alphabet();
  std::string bytes;
  for (char32_t c : decode_utf8(token)) {
    const auto found = alphabet.find(c);
    if (found == alphabet.end()) return std::nullopt;
    bytes += found->second;
  }
  return bytes;
}

// Bytes that no UTF-8 text holds need no token.
bool occurs_in_utf8(int byte) { return byte != 0xC0 && byte != 0xC1 && byte < 0xF5; }

uint64_t pair_key(int32_t left, int32_t right) { return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right); }

}  // namespace

BpeModel::BpeModel(const nlohmann::json& model, const std::string& place) : place_(place) {
  const JsonReader r(model, place);
  r.only("type", "BPE");
  r.only("byte_fallback", false);
  r.only("dropout", 0.0);
  r.only("continuing_subword_prefix", "");
  r.only("end_of_word_suffix", "");
  ignore_merges_ = r.boolean_or("ignore_merges", false);
  read_vocabulary(r.raw("vocab"));
  read_merges(r.raw("merges"));
}

void BpeModel::read_vocabulary(const nlohmann::json& vocabulary) {
  const JsonReader r(vocabulary, place_ + ": vocab");
  for (const auto& [token, value] : vocabulary.items()) {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kHighestId) r.fail(token, value, concat("an id from 0 to ", kHighestId));
    const int32_t id = value.get<int32_t>();
    const std::optional<std::string> bytes = bytes_of(token);
    if (!bytes_.emplace(id, bytes.value_or(token)).second) r.fail(token, value, "an id that no other token has");
    ids_.emplace(token, id);
    if (bytes) id_of_bytes_.emplace(*bytes, id);
    highest_id_ = std::max(highest_id_, id);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = id_of_bytes_.find(std::string(1, static_cast<char>(byte)));
    id_of_byte_[static_cast<size_t>(byte)] = found == id_of_bytes_.end() ? -1 : found->second;
    if (found == id_of_bytes_.end() && occurs_in_utf8(byte)) throw UserError(concat(place_, ": vocab has no token for byte ", byte, "; expected a byte-level vocabulary"));
  }
}

void BpeModel::read_merges(const nlohmann::json& merges) {
  if (!merges.is_array()) throw UserError(place_ + ": merges is no list");
  int32_t rank = 0;
  for (const nlohmann::json& merge : merges) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const std::string text = merge.get<std::string>();
      const size_t space = text.find(' ');
      left = text.substr(0, space);
      right = space == std::string::npos ? "" : text.substr(space + 1);
    }
    const int32_t ids[3] = {id_of(left), id_of(right), id_of(left + right)};
    if (left.empty() || right.empty() || ids[0] < 0 || ids[1] < 0 || ids[2] < 0)
      throw UserError(concat(place_, ": merges[", rank, "] is ", merge.dump().substr(0, 200), "; expected two tokens of the vocabulary that make a third"));
    merges_.insert_or_assign(pair_key(ids[0], ids[1]), Merge{rank++, ids[2]});
  }
}

const std::string* BpeModel::bytes(int32_t id) const {
  const auto found = bytes_.find(id);
  return found == bytes_.end() ? nullptr : &found->second;
}

int32_t BpeModel::id_of(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

const BpeModel::Merge* BpeModel::merge_of(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BpeModel::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    const auto found = id_of_bytes_.find(std::string(word));
    if (found != id_of_bytes_.end()) return ids.push_back(found->second);
  }
  merge_all(word, ids);
}

// Candidates wait in a heap, so that a word of n bytes takes n log n steps. One whose tokens have been merged otherwise in
// the meantime is known by its rank: the pair at its place has another, or none.
void BpeModel::merge_all(std::string_view word, std::vector<int32_t>& ids) const {
  struct Symbol {
    int32_t id;
    int64_t previous, next;
  };
  struct Candidate {
    int32_t rank;
    int64_t left;
    bool operator<(const Candidate& o) const { return rank != o.rank ? rank > o.rank : left > o.left; }  // first out: lowest rank, leftmost
  };
  const int64_t n = static_cast<int64_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  const auto at = [&](int64_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  for (int64_t i = 0; i < n; ++i) at(i) = {id_of_byte_[static_cast<unsigned char>(word[static_cast<size_t>(i)])], i - 1, i + 1};
  const auto merge_at = [&](int64_t left) { return left >= 0 && at(left).id >= 0 && at(left).next < n ? merge_of(at(left).id, at(at(left).next).id) : nullptr; };
  std::priority_queue<Candidate> candidates;
  const auto consider = [&](int64_t left) {
    if (const Merge* m = merge_at(left)) candidates.push({m->rank, left});
  };
  for (int64_t i = 0; i < n; ++i) consider(i);
  while (!candidates.empty()) {
    const auto [rank, left] = candidates.top();
    candidates.pop();
    const Merge* m = merge_at(left);
    if (!m || m->rank != rank) continue;
    const int64_t gone = at(left).next, next = at(gone).next;
    at(left).id = m->id;
    at(left).next = next;
    at(gone).id = -1;
    if (next < n) at(next).previous = left;
    consider(at(left).previous);
    consider(left);
  }
  for (int64_t i = 0; i < n; i = at(i).next) ids.push_back(at(i).id);
}

}  // namespace hyscale
