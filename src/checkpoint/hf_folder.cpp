#include "checkpoint/hf_folder.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <set>
#include <sstream>

#include "core/json.h"

namespace hyscale {
namespace fs = std::filesystem;
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";

// The shard files that an index names; no name may leave the folder.
std::set<std::string> shard_names(const std::string& folder, const nlohmann::json& index) {
  const std::string path = folder + "/" + kIndexName;
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) throw UserError(path + ": has no \"weight_map\" object");
  std::set<std::string> names;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) throw UserError(concat(path, ": weight_map of \"", tensor, "\" is ", file.dump(), "; expected a file name"));
    const std::string name = file.get<std::string>();
    if (name.empty() || name.find('/') != std::string::npos || name.front() == '.')
      throw UserError(concat(path, ": weight_map of \"", tensor, "\" is \"", name, "\"; expected a file of this folder"));
    names.insert(name);
  }
  return names;
}

std::string shard_name(int64_t i, int64_t count) {
  if (count == 1) return "model.safetensors";
  std::ostringstream out;
  out << "model-" << std::setfill('0') << std::setw(5) << i + 1 << "-of-" << std::setw(5) << count << ".safetensors";
  return out.str();
}

int64_t tensor_bytes(const SafetensorsWriter::Entry& t) {
  int64_t n = safetensors_dtype_bytes(t.dtype);
  for (int64_t d : t.shape) n *= d;
  return n;
}

}  // namespace

HfFolderReader::HfFolderReader(const std::string& folder) : folder_(folder) {
  const std::string index = folder + "/" + kIndexName, single = folder + "/model.safetensors";
  if (!fs::is_directory(folder)) throw UserError(folder + ": is no folder; expected a Hugging Face model folder");
  if (fs::exists(single)) {
    readers_.push_back(std::make_unique<SafetensorsReader>(single));
    collect_tensors();
  } else if (fs::exists(index)) {
    const nlohmann::json json = read_json_file(index);
    for (const std::string& name : shard_names(folder, json)) readers_.push_back(std::make_unique<SafetensorsReader>(folder + "/" + name));
    collect_tensors();
    for (const auto& [tensor, file] : json["weight_map"].items())
      if (!has(tensor) || reader(tensor).path() != folder + "/" + file.get<std::string>())
        throw UserError(concat(index, ": \"", tensor, "\" should be in ", file.get<std::string>(), " but is not"));
  } else {
    throw UserError(concat(folder, ": holds neither model.safetensors nor ", kIndexName));
  }
}

void HfFolderReader::collect_tensors() {
  for (const auto& reader : readers_)
    for (const auto& [tensor, info] : reader->tensors()) {
      const auto [other, fresh] = reader_of_.emplace(tensor, reader.get());
      if (!fresh) throw UserError(concat(reader->path(), ": tensor \"", tensor, "\" is also in ", other->second->path()));
    }
}

const SafetensorsReader& HfFolderReader::reader(const std::string& name) const {
  const auto found = reader_of_.find(name);
  if (found == reader_of_.end()) throw UserError(concat(folder_, ": has no tensor \"", name, '"'));
  return *found->second;
}

std::vector<std::string> HfFolderReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, reader] : reader_of_) names.push_back(name);
  return names;
}

HfShardWriter::HfShardWriter(const std::string& folder, std::vector<SafetensorsWriter::Entry> tensors, int64_t shard_bytes)
    : folder_(folder), tensors_(std::move(tensors)) {
  make_folder(folder);
  int64_t in_shard = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const int64_t bytes = tensor_bytes(tensors_[i]);
    if (shards_.empty() || in_shard + bytes > shard_bytes) shards_.push_back({i, i}), in_shard = 0;
    shards_.back().end = i + 1;
    in_shard += bytes;
  }
  total_ = num_shards();
}

void HfShardWriter::number(int64_t first, int64_t total) {
  first_ = first;
  total_ = total;
}

void HfShardWriter::append(const void* bytes, size_t count) {
  HYSCALE_CHECK(next_tensor_ < tensors_.size() && count == static_cast<size_t>(tensor_bytes(tensors_[next_tensor_])), count, " bytes for tensor ", next_tensor_, " of ",
                tensors_.size());
  if (!writer_) {
    const Shard& shard = shards_[next_shard_];
    writer_ = std::make_unique<SafetensorsWriter>(folder_ + "/" + shard_name(first_ + static_cast<int64_t>(next_shard_), total_),
                                                  std::vector<SafetensorsWriter::Entry>(tensors_.begin() + static_cast<int64_t>(shard.begin), tensors_.begin() + static_cast<int64_t>(shard.end)));
  }
  writer_->append(bytes, count);
  if (++next_tensor_ < shards_[next_shard_].end) return;
  writer_->finish();
  digests_[shard_name(first_ + static_cast<int64_t>(next_shard_), total_)] = writer_->digest();
  writer_.reset();
  ++next_shard_;
}

void HfShardWriter::finish() { HYSCALE_CHECK(next_tensor_ == tensors_.size(), next_tensor_, " of ", tensors_.size(), " tensors were written to ", folder_); }

void finish_hf_folder(const std::string& folder, const nlohmann::json& config) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().filename().string());
  std::sort(files.begin(), files.end());
  if (files.size() > 1) {
    nlohmann::ordered_json index;
    int64_t total = 0;
    std::map<std::string, std::string> file_of;
    for (const std::string& file : files) {
      const SafetensorsReader reader(folder + "/" + file);
      for (const auto& [name, info] : reader.tensors()) {
        HYSCALE_CHECK(file_of.emplace(name, file).second, "tensor ", name, " is in ", file_of[name], " and in ", file);
        total += info.end - info.begin;
      }
    }
    index["metadata"]["total_size"] = total;
    index["weight_map"] = file_of;
    write_text_file(folder + "/" + kIndexName, index.dump(2) + "\n");
  }
  write_text_file(folder + "/config.json", config.dump(2) + "\n");
}

}  // namespace hyscale
