// Qwen3.8-Flash-Next, text: embedding copied to the residual streams, layers, mixer, LM head; MTP as an option.
// A vision tower in released files is left out.
#pragma once
#include <optional>

#include "models/layer_stack.h"
#include "models/layered_model.h"
#include "models/qwen/mtp.h"
#include "models/registry.h"

namespace hyscale {

class QwenModel : public LayeredModel {
 public:
  QwenModel(const nlohmann::json& hf_config, const std::string& path, const ModelOptions&);

  int64_t vocabulary_size() const override { return config_.vocab_size; }
  SequenceNeeds sequence_needs() const override { return {layers_.mtp() ? layers_.mtp()->depths() : 0, {config_.attention.indexer.ratio}, config_.reach()}; }
  std::string mtp_prefix() const override { return "mtp."; }
  ForwardFlops forward_flops(int64_t document_tokens) const override;
  float initializer_range() const override { return config_.initializer_range; }

  void train_step(Context&, Recompute) override;
  void evaluate(Context&) override;
  Tensor logits(Context&, Arena& out) override;

 private:
  const MoeConfig& experts() const override { return config_.moe; }
  bool is_looked_up(const Parameter& p) const override { return p.name.ends_with("ngram_embedding.weight"); }
  using Layers = LayerStack<QwenLayer, QwenMtp, Tensor>;
  void prepare(Context&);
  Tensor embed(Context&);
  void embed_backward(Context&, const Tensor& d);
  void add_losses(Context&, const Tensor& streams);  // forward only; streams: the last layer's output

  QwenConfig config_;
  Layers layers_{store_};
  std::optional<QwenHead> head_;
  Tensor inv_freq_;
};

}  // namespace hyscale
