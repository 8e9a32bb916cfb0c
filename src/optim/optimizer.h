// AdamW over a model's parameters: f32 masters and moments, one clipped norm per group.
#pragma once
#include <string>
#include <vector>

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
  Optimizer(ParameterStore&, const OptimizerOptions&, Device);

  // Norms, clipping and update, all on the device. `sums` (f64) must be finite too; when anything is not, no weight changes.
  void update(double lr, const Tensor& sums, Stream);

  struct Result {
    bool applied = false;
    double norm = 0, indexer_norm = 0;  // before clipping
  };
  // Synchronises. Counts the update when it was applied.
  Result result(Stream);

  int64_t updates() const { return updates_; }

  // One safetensors file with master, m and v of every trained parameter. Restoring is bit-exact; throws UserError naming
  // the file and tensor where they do not fit this model.
  void save(const std::string& path) const;
  void restore(const std::string& path, int64_t updates);

 private:
  struct State {
    Parameter* parameter;
    Tensor master, m, v;  // f32, flat
  };

  OptimizerOptions options_;
  Device device_;
  Buffer memory_, scalars_, workspace_;
  std::vector<State> states_;
  Tensor norm_sums_;  // f64 [2]: squares of trunk and indexer gradients
  Tensor gates_;      // f32 [2, 2]: clip factor and flag of each group
  int64_t updates_ = 0;
};

}  // namespace hyscale
