#include "config/yaml_reader.h"

#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "core/file.h"

namespace hyscale {
namespace {

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string suggestion(const std::string& wrong, const std::set<std::string>& known) {
  std::string best, all;
  size_t least = std::min<size_t>(3, wrong.size() / 2) + 1;
  for (const std::string& k : known) {
    if (wrong.starts_with(k + ":") || wrong.starts_with(k + " ")) return concat("; expected \"", k, ": ", wrong.substr(k.size() + 1), "\", with a colon and a space");
    all += (all.empty() ? "" : ", ") + k;
    if (const size_t d = edit_distance(wrong, k); d < least) least = d, best = k;
  }
  return best.empty() ? "; known keys: " + all : "; did you mean \"" + best + "\"?";
}

// `exact`: all digits, as integers are written.
std::string range_text(const Limits& l, bool exact) {
  const auto text = [&](double v) { return exact ? std::to_string(static_cast<int64_t>(v)) : concat(v); };
  if (std::isinf(l.high)) return concat(l.low_excluded ? "above " : "at least ", text(l.low));
  return concat(l.low_excluded ? "above " : "from ", text(l.low), l.low_excluded ? " and at most " : " to ", text(l.high));
}

// How a number is written, where there is one with something else.
std::string notation(const YAML::Node& node, const char* right) {
  if (node.Tag() == "!") return ", without quotes";
  return node.Scalar().find_first_of("0123456789") != std::string::npos ? concat(", ", right) : "";
}

// yaml-cpp says nothing of tabs, which YAML does not indent with.
std::string tab_hint(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number)
    if (line.substr(0, line.find_first_not_of(" \t")).find('\t') != std::string::npos) return concat("; line ", number, " is indented with a tab, expected spaces");
  return "";
}

// Where documents begin.
class DocumentMarks : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { marks.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
  std::vector<YAML::Mark> marks;
};

// YAML::Load reads the first document and says nothing of text behind it. YAML::LoadAll would not end on a stray comma, at
// which yaml-cpp finds one empty document after the other.
YAML::Node load_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentMarks documents;
  if (parser.HandleNextDocument(documents) && parser.HandleNextDocument(documents)) throw YAML::ParserException(documents.marks[1], "text after the first document");
  return YAML::Load(text);
}

bool inside(double v, const Limits& l) { return (l.low_excluded ? v > l.low : v >= l.low) && v <= l.high; }

}  // namespace

YamlReader::YamlReader(const std::string& path, const std::vector<std::string>& overrides) : path_(path) {
  if (!std::ifstream(path)) throw UserError(path + ": cannot be read; expected a YAML configuration");
  const std::string text = read_text_file(path);
  YAML::Node root;
  try {
    root = load_document(text);
  } catch (const YAML::Exception& e) {
    throw UserError(concat(path, ":", e.mark.line + 1, ": is not valid YAML: ", e.msg, tab_hint(text)));
  }
  if (root.IsNull()) root = YAML::Node(YAML::NodeType::Map);
  levels_.push_back({"", root, {}});
  check_map(root, "the file");
  for (const auto& section : root)
    if (section.second.IsMap())
      for (const auto& entry : section.second)
        if (entry.first.IsScalar()) marks_[section.first.as<std::string>() + "." + entry.first.as<std::string>()] = entry.first.Mark();
  for (const std::string& o : overrides) apply_override(o);
}

void YamlReader::apply_override(const std::string& text) {
  const size_t equals = text.find('='), dot = text.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals) throw UserError(concat("--set ", text, ": expected section.key=value"));
  const std::string key = text.substr(0, equals);
  YAML::Node value;
  try {
    value = load_document(text.substr(equals + 1));
  } catch (const YAML::Exception& e) {
    throw UserError(concat("--set ", text, ": the value is not valid YAML: ", e.msg));
  }
  set_value(levels_.front().node, key, 0, value, text);
  origins_[key] = "--set " + text;
}

// The part of `key` from `begin` on lies in `map`.
void YamlReader::set_value(YAML::Node map, const std::string& key, size_t begin, const YAML::Node& value, const std::string& text) const {
  const size_t dot = key.find('.', begin);
  if (dot == std::string::npos) return void(map[key.substr(begin)] = value);
  const std::string name = key.substr(begin, dot - begin);
  if (map[name] && !map[name].IsMap() && !map[name].IsNull()) throw UserError(concat("--set ", text, ": ", key.substr(0, dot), " has no keys"));
  set_value(map[name], key, dot + 1, value, text);
}

std::string YamlReader::key_of(const char* name) const { return levels_.back().name.empty() ? name : levels_.back().name + "." + name; }

std::string YamlReader::place(const YAML::Node& node, const std::string& key) const {
  // An override sets all that lies in its key too.
  for (const auto& [set, origin] : origins_)
    if (key.starts_with(set) && (key.size() == set.size() || key[set.size()] == '.' || key[set.size()] == '[')) return origin;
  if (node && node.Mark().line >= 0) return concat(path_, ":", node.Mark().line + 1);
  // What the file does not have was made by an override of something in it.
  const auto inner = origins_.lower_bound(key + ".");
  return inner != origins_.end() && inner->first.starts_with(key + ".") ? inner->second : path_;
}

void YamlReader::fail_at(const YAML::Node& node, const std::string& key, const std::string& message) const {
  throw UserError(concat(place(node, key), ": ", key, ": ", message));
}

void YamlReader::fail(const std::string& key, const std::string& message) const {
  const auto origin = origins_.find(key);
  const auto mark = marks_.find(key);
  const std::string where = origin != origins_.end() ? origin->second : mark != marks_.end() ? concat(path_, ":", mark->second.line + 1) : path_;
  throw UserError(concat(where, ": ", key, ": ", message));
}

void YamlReader::check_map(const YAML::Node& node, const std::string& key) const {
  if (!node.IsMap()) fail_at(node, key, "expected keys with values");
  std::set<std::string> seen;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) fail_at(entry.first, key, "a key is no word");
    const std::string name = entry.first.as<std::string>();
    if (!seen.insert(name).second) fail_at(entry.first, levels_.back().name.empty() ? name : levels_.back().name + "." + name, "is given twice");
  }
}

void YamlReader::enter(const char* name) {
  Level& parent = levels_.back();
  parent.known.insert(name);
  YAML::Node node = parent.node[name];
  if (!node || node.IsNull()) node = YAML::Node(YAML::NodeType::Map);
  levels_.push_back({name, node, {}});
  check_map(node, name);
}

void YamlReader::enter_item(const std::string& key, const YAML::Node& node) {
  levels_.push_back({key, node, {}});
  check_map(node, key);
}

void YamlReader::leave() {
  const Level level = levels_.back();
  for (const auto& entry : level.node) {
    const std::string name = entry.first.as<std::string>(), key = level.name.empty() ? name : level.name + "." + name;
    if (!level.known.count(name)) fail_at(entry.first, key, "unknown key" + suggestion(name, level.known));
  }
  levels_.pop_back();
}

void YamlReader::finish() { leave(); }

void YamlReader::refuse_misspelt(const Level& level, const std::string& name) const {
  for (const auto& entry : level.node) {
    const std::string key = entry.first.as<std::string>();
    if (key != name && edit_distance(key, name) < 3)
      fail_at(entry.first, level.name.empty() ? key : level.name + "." + key, concat("unknown key; did you mean \"", name, "\"?"));
  }
}

YAML::Node YamlReader::find(const char* name, bool required) {
  levels_.back().known.insert(name);
  const YAML::Node& map = levels_.back().node;
  const YAML::Node node = map[name];
  if (!node && required) {
    // A misspelt key explains a missing one best, and a misspelt section all keys of the one that is missing.
    refuse_misspelt(levels_.back(), name);
    if (map.size() == 0 && levels_.size() > 1) refuse_misspelt(levels_[levels_.size() - 2], levels_.back().name);
    throw UserError(concat(path_, ": ", key_of(name), ": is missing"));
  }
  return node ? node : YAML::Node(YAML::NodeType::Undefined);
}

std::string YamlReader::scalar(const YAML::Node& node, const std::string& key, const char* expected) const {
  if (!node.IsScalar()) fail_at(node, key, concat("expected ", expected, node.IsNull() ? ", the value is empty" : ", not a list or section"));
  return node.Scalar();
}

void YamlReader::text(const char* name, std::string& value, bool required, const char*) {
  const YAML::Node node = find(name, required);
  if (!node.IsDefined()) return;
  value = scalar(node, key_of(name), "text");
  if (required && value.empty()) fail_at(node, key_of(name), "is empty");
}

void YamlReader::choice(const char* name, std::string& value, Choices choices, const char*) {
  const YAML::Node node = find(name, false);
  if (!node.IsDefined()) return;
  value = scalar(node, key_of(name), "a word");
  std::string all;
  for (const char* c : choices) {
    if (value == c) return;
    all += (all.empty() ? "" : ", ") + std::string(c);
  }
  fail_at(node, key_of(name), concat("\"", value, "\"; expected one of ", all));
}

void YamlReader::field(const char* name, int64_t& value, Limits limits, const char*) {
  const YAML::Node node = find(name, limits.required);
  if (!node.IsDefined()) return;
  const std::string text = scalar(node, key_of(name), "an integer");
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || node.Tag() == "!")
    fail_at(node, key_of(name), concat("\"", text, "\"; expected an integer ", range_text(limits, true), notation(node, "in digits alone")));
  if (!inside(static_cast<double>(value), limits)) fail_at(node, key_of(name), concat(text, "; expected an integer ", range_text(limits, true)));
}

void YamlReader::field(const char* name, double& value, Limits limits, const char*) {
  const YAML::Node node = find(name, limits.required);
  if (!node.IsDefined()) return;
  const std::string text = scalar(node, key_of(name), "a number");
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || node.Tag() == "!")
    fail_at(node, key_of(name), concat("\"", text, "\"; expected a number ", range_text(limits, false), notation(node, "such as 0.001 or 1e-3, without a unit")));
  if (!inside(value, limits)) fail_at(node, key_of(name), concat(text, "; expected a number ", range_text(limits, false)));
}

void YamlReader::field(const char* name, bool& value, const char*) {
  const YAML::Node node = find(name, false);
  if (!node.IsDefined()) return;
  const std::string text = scalar(node, key_of(name), "true or false");
  if ((text != "true" && text != "false") || node.Tag() == "!") fail_at(node, key_of(name), concat("\"", text, "\"; expected true or false", node.Tag() == "!" ? ", without quotes" : ""));
  value = text == "true";
}

void YamlReader::datasets(const char* name, std::vector<DatasetEntry>& value, bool required, const char*) {
  const YAML::Node node = find(name, required);
  if (!node.IsDefined()) return;
  const std::string key = key_of(name);
  if (!node.IsSequence() || (required && node.size() == 0)) fail_at(node, key, "expected a list of data sets, each {path: PREFIX, weight: NUMBER}");
  value.clear();
  for (size_t i = 0; i < node.size(); ++i) {
    DatasetEntry entry;
    const std::string item = concat(key, "[", i, "]");
    if (node[i].IsScalar()) {
      entry.path = node[i].Scalar();
    } else {
      enter_item(item, node[i]);
      text("path", entry.path, true, "");
      field("weight", entry.weight, Limits{0, 1e12, true}, "");
      leave();
    }
    value.push_back(entry);
  }
}

}  // namespace hyscale
