// DeepSeek-V4: embedding copied to the residual streams, layers, contraction of the streams, final norm, LM head; MTP as an option.
#pragma once
#include <deque>
#include <optional>

#include "models/deepseek_v4/hyper_block.h"
#include "models/deepseek_v4/v4_mtp.h"
#include "models/model.h"
#include "models/registry.h"

namespace hyscale {

class V4Model : public Model {
 public:
  V4Model(const nlohmann::json& hf_config, const std::string& path, const ModelOptions&);

  ParameterStore& parameters() override { return store_; }
  int num_selecting_layers() const override { return num_slots_; }
  int64_t vocabulary_size() const override { return config_.vocab_size; }
  SequenceNeeds sequence_needs() const override;
  std::string mtp_prefix() const override { return "mtp.0."; }
  int64_t num_active_elements() const override;
  ForwardFlops forward_flops(int64_t document_tokens) const override;
  float initializer_range() const override { return config_.initializer_range; }
  const nlohmann::json& hf_config() const override { return hf_config_; }

  void train_step(Context&, Recompute) override;
  void evaluate(Context&) override;
  Tensor logits(Context&, Arena& out) override;
  Tensor expert_counts() override { return counts_; }
  void after_step(bool applied, Stream) override;

 private:
  struct LayerUse {
    Tensor x;  // [T, S, C]
    HyperBlock::Saved saved;
  };
  void prepare(Context&);
  Tensor embed(Context&);
  const Tensor& frequencies(const HyperBlock& block) const { return block.compresses() ? compressed_inv_freq_ : inv_freq_; }
  int unit(size_t layer) const { return layer < units_.size() ? units_[layer] : -1; }  // -1 beyond both ends
  Tensor forward_only(Context&, Tensor x);  // the streams behind the last layer

  nlohmann::json hf_config_;
  V4Config config_;
  ModelOptions options_;
  ParameterStore store_;
  Parameter* embedding_;
  std::deque<HyperBlock> layers_;
  std::vector<int> slots_, units_;  // of each layer; slot -1: it does not select
  int head_unit_ = 0, num_slots_ = 0;
  std::optional<V4Head> head_;
  Parameter* lm_head_;
  std::optional<V4Mtp> mtp_;
  std::vector<Moe*> moe_layers_;
  Buffer constants_;
  Tensor inv_freq_, compressed_inv_freq_, counts_;
};

}  // namespace hyscale
