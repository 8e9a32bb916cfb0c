// metrics.jsonl: one JSON object per line, each step once, also after a resume; and the same as TensorBoard events where asked for.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/file.h"
#include "train/event_file.h"

namespace hyscale {

class Metrics {
 public:
  // Keeps the lines of an existing file up to `last_step` and drops what is beyond it (steps that will be run again) and
  // a last line that was cut short. event_folder: of TensorBoard's files; "": none.
  Metrics(const std::string& path, int64_t last_step, const std::string& event_folder = "");
  void write(const nlohmann::json&);

 private:
  std::optional<File> file_;
  std::optional<EventFile> events_;
};

}  // namespace hyscale
