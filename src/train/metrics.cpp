#include "train/metrics.h"

#include <filesystem>
#include <sstream>

namespace hyscale {

Metrics::Metrics(const std::string& path, int64_t last_step, const std::string& event_folder) {
  std::string kept;
  if (std::filesystem::exists(path)) {
    std::istringstream lines(read_text_file(path));
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_object() && json.value("step", int64_t{0}) <= last_step) kept += line + "\n";
    }
  }
  write_text_file(path, kept);
  file_.emplace(File::open_to_append(path));
  if (!event_folder.empty()) events_.emplace(event_folder, last_step + 1);
}

void Metrics::write(const nlohmann::json& line) {
  const std::string text = line.dump() + "\n";
  file_->write(text.data(), text.size());
  if (events_) events_->write(line);
}

}  // namespace hyscale
