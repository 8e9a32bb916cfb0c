// Visitor that fills a Config from YAML, strictly.
#pragma once
#include <yaml-cpp/yaml.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "config/schema.h"
#include "core/error.h"

namespace hyscale {

class YamlReader {
 public:
  // `overrides`: "a.b=value", also "a.b.c=value"; they replace what the file says.
  YamlReader(const std::string& path, const std::vector<std::string>& overrides);

  template <typename Function>
  void section(const char* name, const char*, Function function) {
    enter(name);
    function(*this);
    leave();
  }
  // After the last section: keys that no section asked for are errors.
  void finish();

  void text(const char* name, std::string& value, bool required, const char*);
  void choice(const char* name, std::string& value, Choices choices, const char*);
  void field(const char* name, int64_t& value, Limits, const char*);
  void field(const char* name, double& value, Limits, const char*);
  void field(const char* name, bool& value, const char*);
  void datasets(const char* name, std::vector<DatasetEntry>& value, bool required, const char*);
  // A list of structs; visit(*this, item) reads the fields of one.
  template <typename T, typename Visit>
  void list(const char* name, std::vector<T>& values, const char*, Visit visit) {
    const YAML::Node node = find(name, false);
    if (!node.IsDefined()) return;
    const std::string key = key_of(name);
    if (!node.IsSequence()) fail_at(node, key, "expected a list");
    values.clear();
    for (size_t i = 0; i < node.size(); ++i) {
      enter_item(concat(key, "[", i, "]"), node[i]);
      visit(*this, values.emplace_back());
      leave();
    }
  }
  // Structs by name.
  template <typename T, typename Visit>
  void map(const char* name, std::map<std::string, T>& values, Choices names, const char*, Visit visit) {
    const YAML::Node node = find(name, false);
    if (!node.IsDefined()) return;
    const std::string key = key_of(name);
    enter_item(key, node);
    values.clear();
    for (const char* item : names) {
      const YAML::Node fields = find(item, false);
      if (!fields.IsDefined()) continue;
      enter_item(concat(key, ".", item), fields);
      visit(*this, values[item]);
      leave();
    }
    leave();
  }

  // Throws UserError for a combination of values: names the place of `key`, "section.key".
  [[noreturn]] void fail(const std::string& key, const std::string& message) const;

 private:
  struct Level {
    std::string name;  // "" at the root
    YAML::Node node;
    std::set<std::string> known;
  };
  void enter(const char* name);
  void enter_item(const std::string& key, const YAML::Node&);
  void leave();
  YAML::Node find(const char* name, bool required);
  void refuse_misspelt(const Level&, const std::string& name) const;  // throws where the level has a key close to `name`
  void check_map(const YAML::Node&, const std::string& key) const;
  std::string scalar(const YAML::Node&, const std::string& key, const char* expected) const;
  std::string place(const YAML::Node&, const std::string& key) const;
  std::string key_of(const char* name) const;
  [[noreturn]] void fail_at(const YAML::Node&, const std::string& key, const std::string& message) const;
  void apply_override(const std::string& text);
  void set_value(YAML::Node map, const std::string& key, size_t begin, const YAML::Node& value, const std::string& text) const;

  std::string path_;
  std::vector<Level> levels_;
  std::map<std::string, std::string> origins_;  // key -> the override that set it
  std::map<std::string, YAML::Mark> marks_;     // key -> where the file has it
};

}  // namespace hyscale
