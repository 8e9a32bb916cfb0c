// Checkpoint folders of a run:
//   DIR/step-00000010/model/        a Hugging Face model
//                    /optimizer/    sharded optimizer state
//                    /trainer.json  step, tokens, cursor, configuration
//                    /MANIFEST.json files, sizes and xxh3, written last
//   DIR/latest -> step-00000010
// A checkpoint is written under a hidden name and renamed when it is complete: what has its name is whole.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hyscale {

class CheckpointWriter {
 public:
  // Removes what an interrupted save left in `directory`. Throws UserError when the folder cannot be made.
  CheckpointWriter(const std::string& directory, int64_t step);
  ~CheckpointWriter();  // without commit(): the partial folder is removed
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  const std::string& path() const { return partial_; }  // where the parts go
  static std::string partial_path(const std::string& directory, int64_t step);  // the same, for other ranks
  // Manifest, sync, rename, `latest`. Returns the final path.
  std::string commit();

 private:
  std::string directory_, partial_, final_;
  bool committed_ = false;
};

// Digests of files, by their path in the checkpoint, made while they were written: commit() need not read them again.
using FileDigests = std::map<std::string, std::string>;
void leave_digests(const std::string& partial, int rank, const FileDigests&);

// Complete checkpoints of a run, by step ascending.
std::vector<std::pair<int64_t, std::string>> list_checkpoints(const std::string& directory);

// `which`: "latest" (the highest complete step under `directory`; "" when there is none) or the path of a checkpoint.
// Throws UserError when the path holds no complete checkpoint.
std::string find_checkpoint(const std::string& directory, const std::string& which);

// Compares the files with the manifest: names and sizes, and when `hashes` the contents of every parts-th file from `part` on,
// so that ranks share them out. Throws UserError naming the first that differs.
void verify_checkpoint(const std::string& path, bool hashes, int part = 0, int parts = 1);

// Removes all but the newest `keep` checkpoints; steps that milestone_every (not 0) divides stay.
void remove_old_checkpoints(const std::string& directory, int64_t keep, int64_t milestone_every);

}  // namespace hyscale
