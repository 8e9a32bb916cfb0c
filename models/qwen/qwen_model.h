// Qwen3.8-Flash-Next, text: embedding copied to the residual streams, layers, mixer, LM head; MTP as an option.
// A vision tower in released files is left out.
#pragma once
#include <deque>
#include <optional>

#include "models/layered_model.h"
#include "models/qwen/mtp.h"
#include "models/registry.h"

namespace hyscale {

class QwenModel : public LayeredModel {
 public:
  QwenModel(const nlohmann::json& hf_config, const std::string& path, const ModelOptions&);

  int64_t vocabulary_size() const override { return config_.vocab_size; }
  SequenceNeeds sequence_needs() const override { return {mtp_ ? mtp_->depths() : 0, {config_.attention.indexer.ratio}, config_.reach()}; }
  std::string mtp_prefix() const override { return "mtp."; }
  ForwardFlops forward_flops(int64_t document_tokens) const override;
  float initializer_range() const override { return config_.initializer_range; }

  void train_step(Context&, Recompute) override;
  void evaluate(Context&) override;
  Tensor logits(Context&, Arena& out) override;

 private:
  const MoeConfig& experts() const override { return config_.moe; }
  bool is_looked_up(const Parameter& p) const override { return p.name.ends_with("ngram_embedding.weight"); }
  struct LayerUse {
    Tensor streams;  // [T, n, C]
    QwenLayer::Saved saved;
  };
  void prepare(Context&);
  void warmup_step(Context&);
  void evaluate_mtp(Context&, const Tensor& streams);
  Tensor embed(Context&);
  void embed_backward(Context&, const Tensor& d);
  Tensor forward_only(Context&, Tensor streams);  // behind the last layer

  QwenConfig config_;
  std::deque<QwenLayer> layers_;
  std::optional<QwenHead> head_;
  std::optional<QwenMtp> mtp_;
  Tensor inv_freq_;
};

}  // namespace hyscale
