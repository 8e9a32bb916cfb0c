// Qwen3.8-Flash-Next, text: embedding copied to the residual streams, layers, mixer, LM head; MTP as an option.
// Runs on the CPU, with the whole sequence on each rank. A vision tower in released files is left out.
#pragma once
#include <deque>
#include <optional>

#include "models/model.h"
#include "models/qwen/mtp.h"
#include "models/registry.h"

namespace hyscale {

class QwenModel : public Model {
 public:
  QwenModel(const nlohmann::json& hf_config, const std::string& path, const ModelOptions&);

  ParameterStore& parameters() override { return store_; }
  int num_selecting_layers() const override { return num_slots_; }
  int64_t vocabulary_size() const override { return config_.vocab_size; }
  SequenceNeeds sequence_needs() const override { return {mtp_ ? mtp_->depths() : 0, {config_.attention.indexer.ratio}}; }
  std::string mtp_prefix() const override { return "mtp."; }
  int64_t num_active_elements() const override;
  ForwardFlops forward_flops(int64_t document_tokens) const override;
  float initializer_range() const override { return config_.initializer_range; }
  const nlohmann::json& hf_config() const override { return hf_config_; }

  // Throw UserError for what this family does not do: the warm-up stage, a sequence spread over ranks, CUDA.
  void train_step(Context&, Recompute) override;
  void evaluate(Context&) override;
  Tensor logits(Context&, Arena& out) override;
  Tensor expert_counts() override { return counts_; }
  void after_step(bool applied, Stream) override;

 private:
  struct LayerUse {
    Tensor streams;  // [T, n, C]
    QwenLayer::Saved saved;
  };
  void prepare(Context&);
  Tensor embed(Context&);
  void embed_backward(Context&, const Tensor& d);
  int unit(size_t layer) const { return layer < units_.size() ? units_[layer] : -1; }  // -1 beyond both ends
  Tensor forward_only(Context&, Tensor streams);  // behind the last layer

  nlohmann::json hf_config_;
  QwenConfig config_;
  ParameterStore store_;
  Parameter* embedding_;
  std::deque<QwenLayer> layers_;
  std::vector<int> slots_, units_;  // of each layer; slot -1: it does not select
  int head_unit_ = 0, num_slots_ = 0;
  std::optional<QwenHead> head_;
  Parameter* lm_head_;
  std::optional<QwenMtp> mtp_;
  std::vector<Moe*> moe_layers_;
  Buffer constants_;
  Tensor inv_freq_, counts_;
};

}  // namespace hyscale
