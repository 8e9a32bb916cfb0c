// AdamW over this rank's shards of a model's parameters: f32 masters and moments, one clipped norm per group.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/write_queue.h"
#include "comm/communicator.h"
#include "models/parameter_store.h"

namespace hyscale {

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double clip_norm = 0, indexer_clip_norm = 0;  // 0: no clipping
  double indexer_lr_scale = 1;
  bool indexer_only = false;  // the trunk is frozen: it has no state and is not touched
};

class Optimizer {
 public:
  // `world`: all ranks of the job, over which the shards' norms add up; null for one rank.
  Optimizer(ParameterStore&, const OptimizerOptions&, Device, Communicator* world = nullptr);

  // Norms, clipping and update, all on the device. `sums` (f64) must be finite too; when anything is not, no weight changes.
  void update(double lr, const Tensor& sums, Stream);

  struct Result {
    bool applied = false;
    double norm = 0, indexer_norm = 0;  // before clipping
  };
  // Synchronises. Counts the update when it was applied.
  Result result(Stream);

  int64_t updates() const { return updates_; }

  // Writes through the queue; the state is copied before save returns.
  // FOLDER/rank-NNNNN.safetensors with master, m and v of this rank's shards: "NAME@FIRST.m" begins at element FIRST of the
  // parameter NAME. Restoring is bit-exact, from files of any number of ranks in any layout; throws UserError naming file
  // and tensor where they do not fit this model.
  void save(const std::string& folder, WriteQueue&, std::shared_ptr<FileDigests>) const;
  void restore(const std::string& folder, int64_t updates);

 private:
  struct State {
    ShardPiece piece;
    Tensor master, m, v;  // f32, flat
    bool indexer() const { return piece.parameter->group == ParameterGroup::indexer; }
  };

  ParameterStore& store_;
  OptimizerOptions options_;
  Device device_;
  Communicator* world_;
  Buffer memory_, scalars_, workspace_;
  std::vector<State> states_;
  Tensor norm_sums_;  // f64 [2]: squares of trunk and indexer gradients
  Tensor gates_;      // f32 [2, 2]: clip factor and flag of each group
  int64_t updates_ = 0;
};

}  // namespace hyscale
