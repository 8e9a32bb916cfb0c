#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <memory>
#include <sstream>

#include "core/digest.h"
#include "core/file.h"
#include "core/json.h"

namespace hyscale {
namespace fs = std::filesystem;
namespace {

constexpr const char* kManifest = "MANIFEST.json";
constexpr const char* kDamaged = "; the checkpoint is damaged, an earlier one is resumed with --resume RUN/step-N";

std::string step_name(int64_t step) {
  std::ostringstream out;
  out << "step-" << std::setfill('0') << std::setw(8) << step;
  return out.str();
}

std::vector<std::string> files_under(const std::string& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.is_regular_file() && entry.path().filename() != kManifest) names.push_back(fs::relative(entry.path(), root).string());
  std::sort(names.begin(), names.end());
  return names;
}

// Digests that writers left beside their files (leave_digests).
nlohmann::json take_digests(const std::string& partial) {
  nlohmann::json all = nlohmann::json::object();
  std::vector<fs::path> notes;
  for (const auto& entry : fs::directory_iterator(partial))
    if (entry.path().filename().string().starts_with(".digests-")) notes.push_back(entry.path());
  for (const fs::path& note : notes) {
    all.update(nlohmann::json::parse(read_text_file(note.string())));
    fs::remove(note);
  }
  return all;
}

// A link that points to the new checkpoint or the old one, never to nothing.
void point_latest(const std::string& directory, const std::string& name) {
  const std::string temporary = directory + "/.latest.tmp";
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_symlink(name, temporary, error);
  if (!error) fs::rename(temporary, directory + "/latest", error);
  if (error) throw UserError(concat(directory, "/latest: cannot be updated: ", error.message()));
}

}  // namespace

CheckpointWriter::CheckpointWriter(const std::string& directory, int64_t step)
    : directory_(directory), partial_(partial_path(directory, step)), final_(directory + "/" + step_name(step)) {
  make_folder(directory);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename().string().starts_with(".partial-")) fs::remove_all(entry.path(), ignored);
  make_folder(partial_);
}

std::string CheckpointWriter::partial_path(const std::string& directory, int64_t step) { return directory + "/.partial-" + step_name(step); }

CheckpointWriter::~CheckpointWriter() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(partial_, ignored);
}

std::string CheckpointWriter::commit() {
  nlohmann::json manifest{{"format", 1}, {"files", nlohmann::json::object()}};
  const nlohmann::json known = take_digests(partial_);
  for (const std::string& name : files_under(partial_)) {
    const std::string path = partial_ + "/" + name;
    manifest["files"][name] = {{"bytes", fs::file_size(path)}, {"xxh3", known.contains(name) ? known[name].get<std::string>() : file_digest(path)}};
  }
  for (const auto& entry : fs::recursive_directory_iterator(partial_))
    if (entry.is_directory()) sync_directory(entry.path().string());
  write_text_file(partial_ + "/" + kManifest, manifest.dump(1) + "\n");
  sync_directory(partial_);
  std::error_code error;
  fs::remove_all(final_, error);
  fs::rename(partial_, final_, error);
  if (error) throw UserError(concat(final_, ": cannot be renamed into place: ", error.message()));
  committed_ = true;
  sync_directory(directory_);
  point_latest(directory_, fs::path(final_).filename().string());
  return final_;
}

void leave_digests(const std::string& partial, int rank, const FileDigests& digests) {
  write_text_file(concat(partial, "/.digests-", rank), nlohmann::json(digests).dump());
}

std::vector<std::pair<int64_t, std::string>> list_checkpoints(const std::string& directory) {
  std::vector<std::pair<int64_t, std::string>> found;
  if (!fs::is_directory(directory)) return found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step-") || name.size() < 6 || name.find_first_not_of("0123456789", 5) != std::string::npos || name.size() > 20) continue;
    if (fs::exists(entry.path() / kManifest)) found.emplace_back(std::stoll(name.substr(5)), entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string find_checkpoint(const std::string& directory, const std::string& which) {
  if (which == "latest") {
    const auto all = list_checkpoints(directory);
    return all.empty() ? "" : all.back().second;
  }
  if (!fs::exists(which + "/" + kManifest)) throw UserError(concat(which, ": is no complete checkpoint (it has no ", kManifest, "); expected DIR/step-N or \"latest\""));
  return which;
}

void verify_checkpoint(const std::string& path, bool hashes, int part, int parts) {
  const std::string manifest_path = path + "/" + kManifest;
  const nlohmann::json manifest = read_json_file(manifest_path);
  if (!manifest.is_object() || !manifest.contains("files") || !manifest["files"].is_object()) throw UserError(manifest_path + ": has no \"files\"" + kDamaged);
  int file_number = 0;
  for (const auto& [name, entry] : manifest["files"].items()) {
    const std::string file = path + "/" + name;
    const JsonReader r(entry, concat(manifest_path, ": \"", name, '"'));
    if (name.empty() || name.find("..") != std::string::npos || name.front() == '/') throw UserError(concat(manifest_path, ": names \"", name, "\", outside the checkpoint"));
    if (!fs::is_regular_file(file)) throw UserError(concat(file, ": is missing", kDamaged));
    const int64_t size = static_cast<int64_t>(fs::file_size(file)), expected = r.integer("bytes", 0, INT64_MAX);
    if (size != expected) throw UserError(concat(file, ": has ", size, " bytes, the manifest says ", expected, kDamaged));
    if (hashes && file_number++ % parts == part && file_digest(file) != r.text("xxh3")) throw UserError(concat(file, ": its contents differ from the manifest's xxh3", kDamaged));
  }
}

void remove_old_checkpoints(const std::string& directory, int64_t keep, int64_t milestone_every) {
  auto all = list_checkpoints(directory);
  std::error_code ignored;
  for (int64_t i = 0; i + keep < static_cast<int64_t>(all.size()); ++i) {
    const auto& [step, path] = all[static_cast<size_t>(i)];
    if (milestone_every > 0 && step % milestone_every == 0) continue;
    // Without its manifest it is no checkpoint any more, should the removal be cut short.
    fs::remove(path + "/" + kManifest, ignored);
    fs::remove_all(path, ignored);
  }
}

}  // namespace hyscale
