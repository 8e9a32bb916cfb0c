#include "report/run_history.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>

#include "core/error.h"
#include "core/file.h"

namespace hyscale {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double number(const nlohmann::json& value) { return value.is_number() ? value.get<double>() : kNone; }

double value_of(const nlohmann::json& line, const std::string& key) {
  const auto at = line.find(key);
  return at == line.end() ? kNone : number(*at);
}

}  // namespace

bool Series::empty() const {
  return std::none_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

double Series::last() const {
  const auto at = std::find_if(values.rbegin(), values.rend(), [](double v) { return std::isfinite(v); });
  return at == values.rend() ? kNone : *at;
}

std::vector<double> Series::numbers() const {
  std::vector<double> out;
  std::copy_if(values.begin(), values.end(), std::back_inserter(out), [](double v) { return std::isfinite(v); });
  return out;
}

RunHistory::RunHistory(const std::string& folder) : folder_(folder) {
  const std::string metrics = folder + "/metrics.jsonl", config = folder + "/config.yaml";
  if (!std::filesystem::exists(metrics)) throw UserError(metrics + ": does not exist; expected the folder of a run, checkpoint.directory of its configuration");
  std::istringstream lines(read_text_file(metrics));
  for (std::string text; std::getline(lines, text);) {
    const nlohmann::json line = nlohmann::json::parse(text, nullptr, false);
    if (line.is_object() && line.contains("step") && line["step"].is_number_integer()) add(line);
    else ++damaged_lines_;
  }
  if (std::filesystem::exists(config)) config_text_ = read_text_file(config);
}

void RunHistory::add(const nlohmann::json& line) {
  const int64_t step = line["step"];
  if (line.contains("validation_loss")) {
    evaluations_[step] = line;
    return;
  }
  const auto from = steps_.lower_bound(step);
  replaced_steps_ += std::distance(from, steps_.end());
  steps_.erase(from, steps_.end());
  evaluations_.erase(evaluations_.lower_bound(step), evaluations_.end());
  steps_[step] = line;
}

std::string RunHistory::setting(const std::string& section, const std::string& key) const {
  try {
    const YAML::Node value = YAML::Load(config_text_)[section][key];
    return value && value.IsScalar() ? value.Scalar() : "";
  } catch (const YAML::Exception&) {  // an edited file: the report does without
    return "";
  }
}

Series RunHistory::collect(const Lines& lines, const std::string& key, double scale) {
  Series s{key, {}, {}};
  for (const auto& [step, line] : lines) {
    s.steps.push_back(static_cast<double>(step));
    s.values.push_back(value_of(line, key) * scale);
  }
  return s;
}

std::vector<Series> RunHistory::family(const std::string& key, const std::string& item) const {
  std::vector<Series> out;
  std::map<std::string, size_t> places;  // in order of appearance
  for (const auto& [step, line] : steps_) {
    const auto at = line.find(key);
    if (at == line.end() || !(at->is_array() || at->is_object())) continue;
    const auto add = [&](const std::string& name, const nlohmann::json& value) {
      const auto [place, is_new] = places.try_emplace(name, out.size());
      if (is_new) out.push_back({name, {}, {}});
      out[place->second].steps.push_back(static_cast<double>(step));
      out[place->second].values.push_back(number(value));
    };
    if (at->is_object())
      for (const auto& [name, value] : at->items()) add(name, value);
    else
      for (size_t i = 0; i < at->size(); ++i) add(fmt::format("{} {}", item, i), (*at)[i]);
  }
  return out;
}

}  // namespace hyscale
