// The decoder layers of a model with the MTP layer behind them, and the walks of a step over them. Each layer is a unit of the
// ParameterStore: opened before its use, while the next one's weights are on their way, and closed behind it.
//
// A Layer has Saved, forward(ctx, pass, slot, x, y, rope, saved) and backward(ctx, slot, d, rope, saved), and where its family has a
// warm-up stage, warmup(ctx, slot, x, y, rope). An Mtp has unit(), train(ctx, recompute, x, d, rope) and evaluate(ctx, x, rope).
// Rope is what the family's layers take their frequencies from.
#pragma once
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/range.h"
#include "models/model.h"

namespace hyscale {

template <typename Layer, typename Mtp, typename Rope>
class LayerStack {
 public:
  explicit LayerStack(ParameterStore& store) : store_(store) {}

  // slot: of the selection that the layer writes or reads in the SelectionStore, -1: none. args: what Layer takes behind the store.
  template <typename... Args>
  Layer& add(int slot, const Args&... args) {
    slots_.push_back(slot);
    units_.push_back(store_.begin_unit(true));
    return layers_.emplace_back(store_, args...);
  }
  template <typename... Args>
  Mtp& add_mtp(Args&&... args) {
    return mtp_.emplace(store_, std::forward<Args>(args)...);
  }
  size_t size() const { return layers_.size(); }
  const std::optional<Mtp>& mtp() const { return mtp_; }

  // Of one layer, from forward to backward.
  struct Use {
    Tensor x;  // its input
    typename Layer::Saved saved;
  };

  // The last layer's output. Outputs, and without recompute all that `uses` names, stay in the saved arena.
  Tensor forward(Context& ctx, Recompute recompute, Tensor x, const Rope& rope, std::vector<Use>& uses) {
    uses.resize(layers_.size());
    for (size_t i = 0; i < layers_.size(); ++i) {
      uses[i].x = x;
      const Tensor y = ctx.saved->allocate(ctx.residual(), x.shape());
      const Arena::Mark before_layer = ctx.saved->mark();
      const Range range(concat("forward layer ", i).c_str());
      store_.open(unit(i), unit(i + 1), ctx.stream);
      layers_[i].forward(ctx, Pass::forward, slots_[i], x, y, rope, uses[i].saved);
      store_.close(unit(i));
      if (recompute == Recompute::layer) ctx.saved->rewind(before_layer);
      x = y;
    }
    return x;
  }

  // Turns d, the gradient of the last layer's output, into that of the first one's input.
  void backward(Context& ctx, Recompute recompute, const Tensor& d, const Rope& rope, std::vector<Use>& uses) {
    for (size_t i = layers_.size(); i-- > 0;) {
      const ArenaScope recomputed(*ctx.saved);
      const Range range(concat("backward layer ", i).c_str());
      store_.open_for_backward(unit(i), unit(i - 1), ctx.stream);
      if (recompute == Recompute::layer) {
        // The layer's output is known; what is wanted is what its backward reads.
        const Tensor y = ctx.saved->allocate(ctx.residual(), d.shape());
        layers_[i].forward(ctx, Pass::recompute, slots_[i], uses[i].x, y, rope, uses[i].saved);
      }
      layers_[i].backward(ctx, slots_[i], d, rope, uses[i].saved);
      store_.close_after_backward(unit(i), ctx.last_micro_batch, ctx.stream);
    }
  }

  // Forward without backward; overwrites x. Two outputs are alive at a time.
  Tensor evaluate(Context& ctx, Tensor x, const Rope& rope) {
    Tensor y = ctx.saved->allocate(ctx.residual(), x.shape());
    for (size_t i = 0; i < layers_.size(); ++i) {
      const ArenaScope scope(*ctx.saved);
      typename Layer::Saved saved;
      store_.open(unit(i), unit(i + 1), ctx.stream);
      layers_[i].forward(ctx, Pass::evaluate, slots_[i], x, y, rope, saved);
      store_.close(unit(i));
      std::swap(x, y);
    }
    return x;
  }

  // evaluate() of the warm-up stage: each layer trains its indexer on the way.
  Tensor warmup(Context& ctx, Tensor x, const Rope& rope) {
    Tensor y = ctx.saved->allocate(ctx.residual(), x.shape());
    for (size_t i = 0; i < layers_.size(); ++i) {
      const ArenaScope scope(*ctx.saved);
      store_.open_for_backward(unit(i), unit(i + 1), ctx.stream);
      layers_[i].warmup(ctx, slots_[i], x, y, rope);
      store_.close_after_backward(unit(i), ctx.last_micro_batch, ctx.stream);
      std::swap(x, y);
    }
    return x;
  }

  // x: what MTP reads of the trunk; adds to d, its gradient. Nothing without MTP.
  void train_mtp(Context& ctx, Recompute recompute, const Tensor& x, const Tensor& d, const Rope& rope) {
    if (!mtp_) return;
    store_.open_for_backward(mtp_->unit(), units_.back(), ctx.stream);
    mtp_->train(ctx, recompute, x, d, rope);
    store_.close_after_backward(mtp_->unit(), ctx.last_micro_batch, ctx.stream);
  }

  // Adds to sums.mtp, and in the warm-up stage trains the MTP layer's indexer. Nothing without MTP.
  void evaluate_mtp(Context& ctx, const Tensor& x, const Rope& rope) {
    if (!mtp_) return;
    const bool trains = ctx.stage == Stage::warmup;
    trains ? store_.open_for_backward(mtp_->unit(), -1, ctx.stream) : store_.open(mtp_->unit(), -1, ctx.stream);
    mtp_->evaluate(ctx, x, rope);
    trains ? store_.close_after_backward(mtp_->unit(), ctx.last_micro_batch, ctx.stream) : store_.close(mtp_->unit());
  }

 private:
  int unit(size_t layer) const { return layer < units_.size() ? units_[layer] : -1; }  // -1 beyond both ends

  ParameterStore& store_;
  std::deque<Layer> layers_;
  std::vector<int> slots_, units_;  // of each layer
  std::optional<Mtp> mtp_;
};

}  // namespace hyscale
