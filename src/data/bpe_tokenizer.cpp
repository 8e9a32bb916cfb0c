#include "data/bpe_tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "core/json.h"

namespace hyscale {
namespace fs = std::filesystem;
namespace {

// What GPT-2 cuts text by, and ByteLevel with use_regex.
constexpr const char* kByteLevelPattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const nlohmann::json& model_of(const nlohmann::json& file, const std::string& path) { return JsonReader(file, path).raw("model"); }

// The steps of a normalizer or pre_tokenizer: none, one, or those of a Sequence.
std::vector<nlohmann::json> steps_of(const nlohmann::json& file, const char* key, const char* list, const std::string& path) {
  if (!file.contains(key) || file[key].is_null()) return {};
  const JsonReader step(file[key], concat(path, ": ", key));
  if (step.text("type") != "Sequence") return {file[key]};
  if (!step.raw(list).is_array()) step.fail(list, step.raw(list), "a list");
  return step.raw(list).get<std::vector<nlohmann::json>>();
}

// The eos_token of a tokenizer_config.json: its text, or an object with its content.
std::string configured_end(const std::string& tokenizer_path) {
  const std::string path = (fs::path(tokenizer_path).parent_path() / "tokenizer_config.json").string();
  if (!fs::exists(path)) return "";
  const nlohmann::json file = read_json_file(path);
  const JsonReader r(file, path);
  if (!r.has("eos_token")) return "";
  return r.raw("eos_token").is_object() ? JsonReader(r.raw("eos_token"), path + ": eos_token").text("content") : r.text("eos_token");
}

}  // namespace

void AddedTokens::add(const std::string& content, int32_t id) { by_first_byte_[static_cast<unsigned char>(content[0])].emplace(content, id); }

void AddedTokens::split(std::string_view all, const std::function<void(std::string_view)>& text, const std::function<void(int32_t)>& token) const {
  size_t done = 0;
  for (size_t at = 0; at < all.size();) {
    const auto& candidates = by_first_byte_[static_cast<unsigned char>(all[at])];
    const std::string_view rest = all.substr(at);
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const auto& c) { return rest.starts_with(c.first); });
    if (found == candidates.end()) {
      ++at;
      continue;
    }
    if (at > done) text(all.substr(done, at - done));
    token(found->second);
    done = at += found->first.size();
  }
  if (done < all.size()) text(all.substr(done));
}

BpeTokenizer::BpeTokenizer(const std::string& path, const std::string& end_of_document) : BpeTokenizer(path, read_json_file(path), end_of_document) {}

BpeTokenizer::BpeTokenizer(const std::string& path, const nlohmann::json& file, const std::string& end_of_document)
    : path_(path), model_(model_of(file, path), path + ": model"), highest_id_(model_.highest_id()) {
  for (const nlohmann::json& step : steps_of(file, "normalizer", "normalizers", path)) read_normalizer(step);
  read_pre_tokenizer(steps_of(file, "pre_tokenizer", "pretokenizers", path));
  read_added_tokens(file.value("added_tokens", nlohmann::json::array()));
  if (file.contains("decoder") && !file["decoder"].is_null()) JsonReader(file["decoder"], path + ": decoder").only("type", "ByteLevel");
  const std::string end = end_of_document.empty() ? configured_end(path) : end_of_document;
  if (!end.empty()) end_of_document_ = find_token(end, end_of_document.empty() ? "eos_token of tokenizer_config.json" : "end of document");
}

void BpeTokenizer::read_normalizer(const nlohmann::json& step) {
  static const std::map<std::string, NormalForm> kForms{{"NFC", NormalForm::nfc}, {"NFD", NormalForm::nfd}, {"NFKC", NormalForm::nfkc}, {"NFKD", NormalForm::nfkd}};
  const JsonReader r(step, path_ + ": normalizer");
  const auto form = kForms.find(r.text("type"));
  if (form == kForms.end()) r.fail("type", step["type"], "NFC, NFD, NFKC or NFKD");
  forms_.push_back(form->second);
}

void BpeTokenizer::read_pre_tokenizer(const std::vector<nlohmann::json>& steps) {
  bool byte_level = false;
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string place = concat(path_, ": pre_tokenizer[", i, "]");
    const JsonReader r(steps[i], place);
    const std::string type = r.text("type");
    // ByteLevel rewrites the text as characters of the vocabulary, which no pattern of ours is matched against.
    byte_level = type == "ByteLevel";
    if (byte_level != (i + 1 == steps.size())) r.fail("type", type, byte_level ? "ByteLevel as the last step" : "the last step to be ByteLevel");
    if (byte_level) {
      r.only("add_prefix_space", false);
      if (!r.has("add_prefix_space")) r.fail("add_prefix_space", nullptr, "false");
      if (r.boolean_or("use_regex", true)) steps_.push_back({SplitPattern(kByteLevelPattern, SplitPattern::Kind::regex, place)});
    } else if (type == "Digits") {
      steps_.push_back({SplitPattern(r.boolean_or("individual_digits", false) ? "\\p{N}" : "\\p{N}+", SplitPattern::Kind::regex, place)});
    } else if (type == "Split") {
      steps_.push_back(split_step(steps[i], place));
    } else {
      r.fail("type", type, "Split, Digits or ByteLevel");
    }
  }
  if (!byte_level) throw UserError(path_ + ": pre_tokenizer has no ByteLevel step; expected byte-level BPE");
}

BpeTokenizer::Step BpeTokenizer::split_step(const nlohmann::json& step, const std::string& place) const {
  const JsonReader r(step, place), pattern(r.raw("pattern"), place + ": pattern");
  const bool literal = pattern.has("String"), inverted = r.boolean_or("invert", false);
  const std::string behavior = r.text("behavior");
  if (behavior != "Isolated" && behavior != "Removed") r.fail("behavior", behavior, "Isolated or Removed");
  const bool removes = behavior == "Removed";
  return {SplitPattern(pattern.text(literal ? "String" : "Regex"), literal ? SplitPattern::Kind::literal : SplitPattern::Kind::regex, place), !removes || inverted,
          !removes || !inverted};
}

void BpeTokenizer::read_added_tokens(const nlohmann::json& list) {
  if (!list.is_array()) throw UserError(path_ + ": added_tokens is no list");
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonReader r(list[i], concat(path_, ": added_tokens[", i, "]"));
    const std::string content = r.text("content");
    const int32_t id = static_cast<int32_t>(r.integer("id", 0, BpeModel::kHighestId));
    for (const char* key : {"single_word", "lstrip", "rstrip"}) r.only(key, false);
    if (content.empty()) continue;
    const int32_t in_vocabulary = model_.id_of(content);
    if (in_vocabulary >= 0 && in_vocabulary != id) r.fail("id", id, concat("that of the vocabulary, ", in_vocabulary));
    if (in_vocabulary < 0 && model_.bytes(id)) r.fail("id", id, "one that the vocabulary does not use");
    if (!added_ids_.emplace(content, id).second || !added_contents_.emplace(id, content).second) r.fail("content", content, "every token and id once");
    // Absent, as in Hugging Face's reader: ordinary tokens are normalised, special ones are not.
    const bool in_normalized = r.boolean_or("normalized", !r.boolean_or("special", false));
    if (in_normalized) in_normalized_text_.add(normalized(content), id);
    else in_raw_text_.add(content, id);
    highest_id_ = std::max<int64_t>(highest_id_, id);
  }
}

int32_t BpeTokenizer::find_token(const std::string& token, const std::string& place) const {
  const auto added = added_ids_.find(token);
  const int32_t id = added != added_ids_.end() ? added->second : model_.id_of(token);
  if (id < 0) throw UserError(concat(path_, ": has no token \"", token, "\" (", place, ")"));
  return id;
}

std::string BpeTokenizer::normalized(std::string_view text) const {
  std::string out(text);
  for (NormalForm form : forms_) out = normalize(out, form);
  return out;
}

void BpeTokenizer::encode_words(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<std::string_view> words{text}, cut;
  for (const Step& step : steps_) {
    cut.clear();
    for (std::string_view word : words)
      step.pattern.split(word, [&](std::string_view piece, bool matched) {
        if (matched ? step.keep_matches : step.keep_gaps) cut.push_back(piece);
      });
    words.swap(cut);
  }
  for (std::string_view word : words) model_.encode(word, ids);
}

std::vector<int32_t> BpeTokenizer::encode(const std::string& text) const {
  check_utf8(text);
  std::vector<int32_t> ids;
  const auto add = [&](int32_t id) { ids.push_back(id); };
  in_raw_text_.split(text, [&](std::string_view part) {
    in_normalized_text_.split(normalized(part), [&](std::string_view words) { encode_words(words, ids); }, add);
  }, add);
  return ids;
}

std::string BpeTokenizer::decode(const std::vector<int32_t>& ids) const {
  std::string text;
  for (int32_t id : ids) {
    const auto added = added_contents_.find(id);
    const std::string* bytes = added != added_contents_.end() ? &added->second : model_.bytes(id);
    if (bytes) text += *bytes;
  }
  return text;
}

}  // namespace hyscale
