// What a run's folder tells about it: metrics.jsonl as series, config.yaml as text.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hyscale {

// Values over steps, ascending; NaN where a step has none.
struct Series {
  std::string name;
  std::vector<double> steps, values;
  bool empty() const;                // no value that is a number
  double last() const;               // the last number; NaN for an empty series
  std::vector<double> numbers() const;
};

class RunHistory {
 public:
  // Reads FOLDER/metrics.jsonl and, where there is one, FOLDER/config.yaml. Lines that are no JSON object with a step (the last one of a
  // run that was killed) are counted and left out. A training step at or below one that was read before begins a resumed run: it
  // replaces what was said of it and of later steps. Throws UserError when there is no metrics.jsonl.
  explicit RunHistory(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const std::string& config_text() const { return config_text_; }
  // A key of config.yaml as text, "" where it is not known.
  std::string setting(const std::string& section, const std::string& key) const;
  const std::map<int64_t, nlohmann::json>& steps() const { return steps_; }
  int64_t damaged_lines() const { return damaged_lines_; }
  int64_t replaced_steps() const { return replaced_steps_; }

  // A key of the training steps' lines, or of the evaluations'; empty for keys that no line has.
  Series series(const std::string& key, double scale = 1) const { return collect(steps_, key, scale); }
  Series evaluations(const std::string& key) const { return collect(evaluations_, key, 1); }
  // A key whose value is a list or an object (one per part), of the steps that have it. Lists get the names "layer 0", "layer 1", ...
  std::vector<Series> family(const std::string& key, const std::string& item = "layer") const;

 private:
  using Lines = std::map<int64_t, nlohmann::json>;
  static Series collect(const Lines&, const std::string& key, double scale);
  void add(const nlohmann::json& line);

  std::string folder_, config_text_;
  Lines steps_, evaluations_;
  int64_t damaged_lines_ = 0, replaced_steps_ = 0;
};

}  // namespace hyscale
