// Visitor that fills a Config from YAML, strictly.
#pragma once
#include <yaml-cpp/yaml.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "config/schema.h"

namespace hyscale {

class YamlReader {
 public:
  // `overrides`: "a.b=value"; they replace what the file says.
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

  // Throws UserError for a combination of values: names the place of `key`, "section.key".
  [[noreturn]] void fail(const std::string& key, const std::string& message) const;

 private:
  struct Level {
    std::string name;  // "" at the root
    YAML::Node node;
    std::set<std::string> known;
  };
  void enter(const char* name);
  void leave();
  YAML::Node find(const char* name, bool required);
  void check_map(const YAML::Node&, const std::string& key) const;
  std::string scalar(const YAML::Node&, const std::string& key, const char* expected) const;
  std::string place(const YAML::Node&, const std::string& key) const;
  std::string key_of(const char* name) const;
  [[noreturn]] void fail_at(const YAML::Node&, const std::string& key, const std::string& message) const;
  void apply_override(const std::string& text);

  std::string path_;
  std::vector<Level> levels_;
  std::map<std::string, std::string> origins_;  // key -> the override that set it
  std::map<std::string, YAML::Mark> marks_;     // key -> where the file has it
};

}  // namespace hyscale
