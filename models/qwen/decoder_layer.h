// One Qwen3.8 layer on residual streams: an n-gram memory where the layer has one, then attention (gated delta rule or selected
// blocks) and experts, each between a read and a write of the streams. Streams, what is written to them and their gradients are of
// the residual's dtype.
#pragma once
#include <optional>

#include "models/qwen/feed_forward.h"
#include "models/qwen/gated_attention.h"
#include "models/qwen/gated_delta_net.h"
#include "models/qwen/gated_residual.h"
#include "models/qwen/ngram_memory.h"

namespace hyscale {

class QwenLayer {
 public:
  // ngram_number: which n-gram memory of the model the layer has; -1: none.
  QwenLayer(ParameterStore&, const std::string& prefix, const QwenConfig&, bool sparse, int ngram_number);

  struct Site {
    GatedResidual::Saved residual;
    Tensor x, y;  // [T, C]: into and out of the sublayer
  };
  struct Saved {
    NgramMemory::Saved ngram;
    Tensor streams, middle;  // [T, n, C]: behind the memory (the caller's without one), behind attention
    Site attention_site, feed_forward_site;
    GatedDeltaNet::Saved delta;
    GatedAttention::Saved attention;
    QwenFeedForward::Saved feed_forward;
  };
  // slot: where the selection of this use of the layer lies in the SelectionStore; -1 where it does not select.
  void forward(Context&, Pass, int slot, const Tensor& streams, const Tensor& out, const Tensor& inv_freq, Saved&);
  // Warm-up stage: dense attention; the indexer's parameters get their gradients on the way, and nothing is kept.
  void warmup(Context&, int slot, const Tensor& streams, const Tensor& out, const Tensor& inv_freq);
  // Turns the gradient of out into that of streams in place.
  void backward(Context&, int slot, const Tensor& d, const Tensor& inv_freq, const Saved&);

  Moe& moe() { return feed_forward_.moe(); }

 private:
  // attend(x, y): the layer's attention.
  template <typename Attend>
  void walk(Context&, Pass, const Tensor& streams, const Tensor& out, Saved&, Attend attend);
  void enter(Context&, const Tensor& streams, GatedResidual&, Site&);

  std::optional<NgramMemory> ngram_;
  GatedResidual attention_residual_, feed_forward_residual_;
  std::optional<GatedDeltaNet> delta_;
  std::optional<GatedAttention> attention_;
  QwenFeedForward feed_forward_;
};

}  // namespace hyscale
