// GLM-5, 5.1 and 5.2: embedding, decoder layers, final norm, LM head, and MTP as an option.
#pragma once
#include <deque>
#include <optional>

#include "models/glm/decoder_layer.h"
#include "models/glm/mtp.h"
#include "models/model.h"
#include "models/registry.h"

namespace hyscale {

class GlmModel : public Model {
 public:
  GlmModel(const nlohmann::json& hf_config, const std::string& path, const ModelOptions&);

  ParameterStore& parameters() override { return store_; }
  int num_selecting_layers() const override { return num_slots_; }
  int64_t vocabulary_size() const override { return config_.vocab_size; }
  SequenceNeeds sequence_needs() const override { return {mtp_ ? mtp_->depths() : 0, {}}; }
  std::string mtp_prefix() const override { return concat("model.layers.", config_.num_layers, "."); }
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
    Tensor x;  // input of the layer, [T, C]
    DecoderLayer::Saved saved;
  };
  Tensor embed(Context&);
  void prepare(Context&);  // constants and counters on the device, once
  Tensor forward_only(Context&, Tensor x);
  void warmup_step(Context&);
  void evaluate_mtp(Context&, const Tensor& h);
  int unit(size_t layer) const { return layer < units_.size() ? units_[layer] : -1; }  // -1 beyond both ends
  Tensor final_norm(Context&, const Tensor& x, const Tensor& rstd);

  nlohmann::json hf_config_;
  GlmConfig config_;
  ModelOptions options_;
  ParameterStore store_;
  Parameter* embedding_;
  std::deque<DecoderLayer> layers_;
  std::vector<int> slots_;  // of each layer
  std::vector<int> units_;  // of each layer, in the ParameterStore
  int head_unit_ = 0;
  int num_slots_ = 0;
  Parameter *norm_, *lm_head_;
  std::optional<Mtp> mtp_;
  std::vector<Moe*> moe_layers_;
  Buffer constants_;
  Tensor inv_freq_, counts_;
};

}  // namespace hyscale
