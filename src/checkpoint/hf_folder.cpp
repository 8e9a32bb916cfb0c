#include "checkpoint/hf_folder.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <set>

#include "core/error.h"

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

std::string shard_name(size_t i, size_t count) {
  std::ostringstream out;
  out << "model-" << std::setfill('0') << std::setw(5) << i + 1 << "-of-" << std::setw(5) << count << ".safetensors";
  return out.str();
}

int64_t source_bytes(const HfTensorSource& t) {
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
  } else if (fs::exists(index)) {
    const nlohmann::json json = nlohmann::json::parse(read_text_file(index), nullptr, false);
    if (json.is_discarded()) throw UserError(index + ": is not valid JSON");
    for (const std::string& name : shard_names(folder, json)) readers_.push_back(std::make_unique<SafetensorsReader>(folder + "/" + name));
    for (const auto& reader : readers_)
      for (const auto& [tensor, info] : reader->tensors()) reader_of_[tensor] = reader.get();
    for (const auto& [tensor, file] : json["weight_map"].items())
      if (!has(tensor)) throw UserError(concat(index, ": \"", tensor, "\" should be in ", file.get<std::string>(), " but is not"));
  } else {
    throw UserError(concat(folder, ": holds neither model.safetensors nor ", kIndexName));
  }
  for (const auto& reader : readers_)
    for (const auto& [tensor, info] : reader->tensors()) reader_of_[tensor] = reader.get();
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

void write_hf_folder(const std::string& folder, const nlohmann::json& config, std::vector<HfTensorSource> tensors, int64_t shard_bytes) {
  fs::create_directories(folder);
  std::sort(tensors.begin(), tensors.end(), [](const HfTensorSource& a, const HfTensorSource& b) {
    const int64_t wa = safetensors_dtype_bytes(a.dtype), wb = safetensors_dtype_bytes(b.dtype);
    return wa != wb ? wa > wb : a.name < b.name;
  });
  std::vector<std::pair<size_t, size_t>> shards;  // ranges of tensors
  int64_t total = 0, in_shard = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = source_bytes(tensors[i]);
    if (shards.empty() || in_shard + bytes > shard_bytes) shards.emplace_back(i, i), in_shard = 0;
    shards.back().second = i + 1;
    in_shard += bytes;
    total += bytes;
  }
  if (shards.empty()) shards.emplace_back(0, 0);
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = shards.size() == 1 ? "model.safetensors" : shard_name(s, shards.size());
    std::vector<SafetensorsWriter::Entry> entries;
    for (size_t i = shards[s].first; i < shards[s].second; ++i) {
      entries.push_back({tensors[i].name, tensors[i].dtype, tensors[i].shape});
      index["weight_map"][tensors[i].name] = name;
    }
    SafetensorsWriter writer(folder + "/" + name, entries);
    for (size_t i = shards[s].first; i < shards[s].second; ++i) {
      const std::vector<char> bytes = tensors[i].bytes();
      writer.append(bytes.data(), bytes.size());
    }
    writer.finish();
  }
  if (shards.size() > 1) write_text_file(folder + "/" + kIndexName, index.dump(2) + "\n");
  write_text_file(folder + "/config.json", config.dump(2) + "\n");
}

}  // namespace hyscale
