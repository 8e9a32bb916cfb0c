// AdamW over a model's parameters: f32 masters and moments, one clipped norm per group.
//
// The data ranks share the state (ZeRO-1, a whole parameter at a time): each parameter has an owner that keeps its master
// and moments, updates it, and broadcasts the new value. Gradients are already summed over the ranks when update() is called.
#pragma once
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "models/parameter.h"

namespace hyscale {

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double clip_norm = 0, indexer_clip_norm = 0;  // 0: no clipping
  double indexer_lr_scale = 1;
  bool indexer_only = false;  // the trunk is frozen: it has no state and is not touched
};

class Optimizer {
 public:
  // rank and ranks: of the data group; `data` is null for one rank (and on meta, where a plan asks for one rank's share).
  Optimizer(ParameterStore&, const OptimizerOptions&, Device, int rank = 0, int ranks = 1, Communicator* data = nullptr);

  // Norms, clipping and update, all on the device. `sums` (f64) must be finite too; when anything is not, no weight changes.
  void update(double lr, const Tensor& sums, Stream);

  struct Result {
    bool applied = false;
    double norm = 0, indexer_norm = 0;  // before clipping
  };
  // Synchronises. Counts the update when it was applied.
  Result result(Stream);

  int64_t updates() const { return updates_; }

  // FOLDER/rank-NNNNN.safetensors with master, m and v of the parameters that this rank owns. Restoring is bit-exact, from
  // files of any number of ranks; throws UserError naming file and tensor where they do not fit this model.
  void save(const std::string& folder) const;
  void restore(const std::string& folder, int64_t updates);

 private:
  struct State {
    Parameter* parameter;
    Tensor master, m, v;  // f32, flat
  };

  void share_values(Stream);

  OptimizerOptions options_;
  Device device_;
  int rank_;
  Communicator* data_;
  Buffer memory_, scalars_, workspace_;
  std::vector<State> states_;                              // of the parameters that this rank owns
  std::vector<std::pair<Parameter*, int>> trained_;        // every trained parameter and its owner
  Tensor norm_sums_;  // f64 [2]: squares of trunk and indexer gradients
  Tensor gates_;      // f32 [2, 2]: clip factor and flag of each group
  int64_t updates_ = 0;
};

}  // namespace hyscale
