// AdamW or Muon over this rank's shards of a model's parameters: f32 masters and moments, one clipped norm per group.
// Muon (optim/muon.h) is for matrices; what its roles have beside them (the indexers' norms) is AdamW's all the same.
#pragma once
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/write_queue.h"
#include "comm/communicator.h"
#include "models/parameter_store.h"
#include "optim/muon.h"

namespace hyscale {

// How the parameters of one role are trained.
struct RoleOptions {
  bool muon = false;
  double lr_scale = 1;  // of the schedule's rate
};

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double clip_norm = 0, indexer_clip_norm = 0;  // 0: no clipping
  bool indexer_only = false;  // the trunk is frozen: it has no state and is not touched
  std::array<RoleOptions, kNumParameterRoles> roles;  // by ParameterRole
  MuonOptions muon;
  const RoleOptions& of(const Parameter& p) const { return roles[static_cast<size_t>(p.role())]; }
  bool uses_muon(const Parameter& p) const { return of(p).muon && p.is_matrix() && !(indexer_only && p.group != ParameterGroup::indexer); }
};

// The most that a step may show; above it, it is not applied.
inline constexpr double kNoBound = std::numeric_limits<double>::infinity();
struct UpdateBounds {
  double norm = kNoBound, indexer_norm = kNoBound, first_sum = kNoBound;
};

class Optimizer {
 public:
  // `world`: all ranks of the job, over which the shards' norms add up; null for one rank.
  // `before`: the optimizer of an earlier stage over the same store, whose state goes on; what it did not train starts anew.
  Optimizer(ParameterStore&, const OptimizerOptions&, Device, Communicator* world = nullptr, const Optimizer* before = nullptr);

  // Norms, clipping and update, all on the device. `sums` (f64) must be finite too and the first of them within its bound; when
  // anything is not, no weight changes. Gradients may be spent.
  void update(double lr, const Tensor& sums, Stream, const UpdateBounds& = {});

  struct Result {
    bool applied = false;
    double norm = 0, indexer_norm = 0;  // before clipping
  };
  // Synchronises. Counts the update when it was applied.
  Result result(Stream);

  // Applied so far. The trunk has fewer than the indexers where a warm-up stage went before.
  struct Updates {
    int64_t trunk = 0, indexer = 0;
  };
  Updates updates() const { return updates_; }

  // Writes through the queue; the state is copied before save returns.
  // FOLDER/rank-NNNNN.safetensors with master, m and v (Muon: master and momentum) of this rank's shards: "NAME@FIRST.m" begins
  // at element FIRST of the parameter NAME. Restoring is bit-exact, from files of any number of ranks in any layout; throws UserError naming file
  // and tensor where they do not fit this model.
  void save(const std::string& folder, WriteQueue&, std::shared_ptr<FileDigests>) const;
  void restore(const std::string& folder, Updates updates);

 private:
  struct State {
    ShardPiece piece;
    Tensor master, m, v;  // f32, flat; m is Muon's momentum, which has no v
    bool muon;
    bool indexer() const { return piece.parameter->group == ParameterGroup::indexer; }
    std::vector<std::pair<const char*, Tensor>> parts() const;  // by the names they have in checkpoints
  };
  void allocate();
  void start_muon();
  void take_over(const Optimizer& before);

  ParameterStore& store_;
  OptimizerOptions options_;
  Device device_;
  Communicator* world_;
  Buffer memory_, scalars_, workspace_;
  std::vector<State> states_;
  Tensor norm_sums_;  // f64 [2]: squares of trunk and indexer gradients
  Tensor gates_;      // f32 [2, 2]: clip factor and flag of each group
  std::optional<Muon> muon_;
  Updates updates_;
};

}  // namespace hyscale
