// Hugging Face model folders: config.json, model.safetensors or shards with an index.
#pragma once
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace hyscale {

// All tensors of a folder, wherever they lie.
class HfFolderReader {
 public:
  // Throws UserError: no weights in the folder, shards that are missing or named outside it, an index that disagrees.
  explicit HfFolderReader(const std::string& folder);
  bool has(const std::string& name) const { return reader_of_.count(name) != 0; }
  const SafetensorsReader& reader(const std::string& name) const;  // UserError when absent
  std::vector<std::string> names() const;
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;
  std::map<std::string, const SafetensorsReader*> reader_of_;
};

// A tensor to be written; `bytes` is called when its turn comes and may be asked once.
struct HfTensorSource {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::function<std::vector<char>()> bytes;
};

// Writes config.json and the tensors, widest dtype first and then by name, as the safetensors library orders them; shards
// of at most `shard_bytes` (one tensor at least) and an index when one file is not enough.
void write_hf_folder(const std::string& folder, const nlohmann::json& config, std::vector<HfTensorSource>, int64_t shard_bytes = int64_t{5} << 30);

}  // namespace hyscale
