// The effective configuration and the reference of keys, from the schema.
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>

#include "config/schema.h"
#include "core/error.h"

namespace hyscale {
namespace {

std::string shortest(double value) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof text, value);
  return {text, result.ptr};
}

class Printer {
 public:
  Printer() { out_ << YAML::BeginMap; }
  std::string finish() {
    out_ << YAML::EndMap;
    return std::string(out_.c_str()) + "\n";
  }
  template <typename Function>
  void section(const char* name, const char*, Function function) {
    out_ << YAML::Key << name << YAML::Value << YAML::BeginMap;
    function(*this);
    out_ << YAML::EndMap;
  }
  void text(const char* name, std::string& value, bool, const char*) { out_ << YAML::Key << name << YAML::Value << YAML::DoubleQuoted << value; }
  void choice(const char* name, std::string& value, Choices, const char*) { out_ << YAML::Key << name << YAML::Value << value; }
  void field(const char* name, int64_t& value, Limits, const char*) { out_ << YAML::Key << name << YAML::Value << value; }
  void field(const char* name, double& value, Limits, const char*) { out_ << YAML::Key << name << YAML::Value << shortest(value); }
  void field(const char* name, bool& value, const char*) { out_ << YAML::Key << name << YAML::Value << value; }
  void datasets(const char* name, std::vector<DatasetEntry>& value, bool, const char*) {
    out_ << YAML::Key << name << YAML::Value << YAML::BeginSeq;
    for (const DatasetEntry& d : value)
      out_ << YAML::Flow << YAML::BeginMap << YAML::Key << "path" << YAML::Value << YAML::DoubleQuoted << d.path << YAML::Key << "weight" << YAML::Value
           << shortest(d.weight) << YAML::EndMap;
    out_ << YAML::EndSeq;
  }
  template <typename T, typename Visit>
  void list(const char* name, std::vector<T>& values, const char*, Visit visit) {
    out_ << YAML::Key << name << YAML::Value << YAML::BeginSeq;
    for (T& item : values) {
      out_ << YAML::BeginMap;
      visit(*this, item);
      out_ << YAML::EndMap;
    }
    out_ << YAML::EndSeq;
  }
  template <typename T, typename Visit>
  void map(const char* name, std::map<std::string, T>& values, Choices, const char*, Visit visit) {
    section(name, "", [&](Printer& p) {
      for (auto& item : values) p.section(item.first.c_str(), "", [&](Printer& fields) { visit(fields, item.second); });
    });
  }

 private:
  YAML::Emitter out_;
};

// Values of single keys, "section.key"; lists are one value.
void flatten(const YAML::Node& node, const std::string& key, std::map<std::string, std::string>& values) {
  if (!node.IsMap()) return void(values[key] = YAML::Dump(node));
  for (const auto& entry : node) flatten(entry.second, key.empty() ? entry.first.as<std::string>() : key + "." + entry.first.as<std::string>(), values);
}

class Reference {
 public:
  std::string text_ = "# Configuration keys\n\nGenerated from `src/config/schema.h` by `hyscale-train --config-reference`; a test keeps it current.\n"
                      "Unknown, duplicate and mistyped keys stop a run. `--set section.key=value` overrides a key.\n";
  template <typename Function>
  void section(const char* name, const char* meaning, Function function) {
    text_ += concat("\n## ", name, "\n", meaning, "\n\n| key | type | default | meaning |\n|---|---|---|---|\n");
    function(*this);
  }
  void text(const char* name, std::string& value, bool required, const char* meaning) { row(name, "text", required ? "required" : quoted(value), meaning); }
  void choice(const char* name, std::string& value, Choices choices, const char* meaning) {
    row(name, joined(choices), value, meaning);
  }
  void field(const char* name, int64_t& value, Limits l, const char* meaning) {
    row(name, "integer " + range(l), l.required ? "required" : std::to_string(value), meaning);
  }
  void field(const char* name, double& value, Limits l, const char* meaning) {
    row(name, "number " + range(l), l.required ? "required" : shortest(value), meaning);
  }
  void field(const char* name, bool& value, const char* meaning) { row(name, "true, false", value ? "true" : "false", meaning); }
  void datasets(const char* name, std::vector<DatasetEntry>&, bool required, const char* meaning) {
    row(name, "list of {path, weight}", required ? "required" : "none", meaning);
  }
  template <typename T, typename Visit>
  void list(const char* name, std::vector<T>&, const char* meaning, Visit visit) {
    row(name, "list", "none", meaning);
    fields_of(concat(name, "[]."), T{}, visit);
  }
  template <typename T, typename Visit>
  void map(const char* name, std::map<std::string, T>&, Choices names, const char* meaning, Visit visit) {
    row(name, joined(names), "none", meaning);
    fields_of(concat(name, ".*."), T{}, visit);
  }

 private:
  template <typename T, typename Visit>
  void fields_of(const std::string& prefix, T defaults, Visit visit) {
    prefix_ = prefix;
    visit(*this, defaults);
    prefix_.clear();
  }
  static std::string joined(Choices choices) {
    std::string all;
    for (const char* c : choices) all += (all.empty() ? "" : ", ") + std::string(c);
    return all;
  }
  static std::string quoted(const std::string& s) { return s.empty() ? "empty" : s; }
  static std::string range(const Limits& l) {
    return concat(l.low_excluded ? "> " : ">= ", shortest(l.low), std::isinf(l.high) ? "" : concat(", <= ", shortest(l.high)));
  }
  void row(const char* name, const std::string& type, const std::string& otherwise, const char* meaning) {
    text_ += concat("| `", prefix_, name, "` | ", type, " | ", otherwise, " | ", meaning, " |\n");
  }
  std::string prefix_;  // of fields of lists and maps
};

}  // namespace

std::vector<std::string> config_changes(const std::string& earlier, const std::string& file, const Config& config) {
  std::map<std::string, std::string> then, now;
  try {
    flatten(YAML::Load(earlier), "", then);
  } catch (const YAML::Exception& e) {
    throw UserError(concat(file, ": \"config\" is not valid YAML: ", e.msg));
  }
  flatten(YAML::Load(config_yaml(config)), "", now);
  std::vector<std::string> changes;
  for (const auto& [key, value] : now) {
    const auto found = then.find(key);
    if (found == then.end() || found->second != value) changes.push_back(concat(key, " ", value, " (was ", found == then.end() ? "not given" : found->second, ")"));
  }
  for (const auto& [key, value] : then)
    if (!now.count(key)) changes.push_back(concat(key, " not given (was ", value, ")"));
  return changes;
}

std::string config_yaml(const Config& config) {
  Config copy = config;
  Printer printer;
  visit_config(printer, copy);
  return printer.finish();
}

std::string config_reference() {
  Config defaults;
  Reference reference;
  visit_config(reference, defaults);
  return reference.text_;
}

}  // namespace hyscale
