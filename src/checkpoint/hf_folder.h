// Hugging Face model folders: config.json, model.safetensors or shards with an index.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace hyscale {

// All tensors of a folder, wherever they lie.
class HfFolderReader {
 public:
  // Throws UserError: no weights in the folder, shards that are missing or named outside it, a tensor in two shards, an index
  // that disagrees.
  explicit HfFolderReader(const std::string& folder);
  bool has(const std::string& name) const { return reader_of_.count(name) != 0; }
  const SafetensorsReader& reader(const std::string& name) const;  // UserError when absent
  std::vector<std::string> names() const;
  const std::string& folder() const { return folder_; }

 private:
  void collect_tensors();
  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;
  std::map<std::string, const SafetensorsReader*> reader_of_;
};

// Writes tensors one after the other into shards of at most `shard_bytes` (one tensor at least). Several writers, each with
// its own tensors, may fill one folder: they agree on how many shards there are, and one of them then writes the index.
class HfShardWriter {
 public:
  HfShardWriter(const std::string& folder, std::vector<SafetensorsWriter::Entry> tensors, int64_t shard_bytes = int64_t{5} << 30);
  int64_t num_shards() const { return static_cast<int64_t>(shards_.size()); }
  // Before the first append: this writer's shards are number first, first + 1, ... of total; a single one is model.safetensors.
  void number(int64_t first, int64_t total);
  void append(const void* bytes, size_t count);  // a whole tensor, in the order given
  void finish();
  // Digest of each finished shard, by file name.
  const std::map<std::string, std::string>& digests() const { return digests_; }

 private:
  struct Shard {
    size_t begin, end;  // tensors
  };
  std::string folder_;
  std::vector<SafetensorsWriter::Entry> tensors_;
  std::vector<Shard> shards_;
  int64_t first_ = 0, total_ = 1;
  size_t next_tensor_ = 0, next_shard_ = 0;
  std::unique_ptr<SafetensorsWriter> writer_;
  std::map<std::string, std::string> digests_;
};

// When every shard is there: config.json, and the index where there are several files.
void finish_hf_folder(const std::string& folder, const nlohmann::json& config);

}  // namespace hyscale
