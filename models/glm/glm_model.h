// GLM-5, 5.1 and 5.2: embedding, decoder layers, final norm, LM head, and MTP as an option.
#pragma once
#include <deque>
#include <optional>

#include "models/glm/decoder_layer.h"
#include "models/glm/mtp.h"
#include "models/layered_model.h"
#include "models/registry.h"

namespace hyscale {

class GlmModel : public LayeredModel {
 public:
  GlmModel(const nlohmann::json& hf_config, const std::string& path, const ModelOptions&);

  int64_t vocabulary_size() const override { return config_.vocab_size; }
  SequenceNeeds sequence_needs() const override { return {mtp_ ? mtp_->depths() : 0, {}}; }
  std::string mtp_prefix() const override { return concat("model.layers.", config_.num_layers, "."); }
  ForwardFlops forward_flops(int64_t document_tokens) const override;
  float initializer_range() const override { return config_.initializer_range; }

  void train_step(Context&, Recompute) override;
  void evaluate(Context&) override;
  Tensor logits(Context&, Arena& out) override;

 private:
  const MoeConfig& experts() const override { return config_.moe; }
  struct LayerUse {
    Tensor x;  // input of the layer, [T, C]
    DecoderLayer::Saved saved;
  };
  Tensor embed(Context&);
  void prepare(Context&);  // constants and counters on the device, once
  Tensor forward_only(Context&, Tensor x);
  void warmup_step(Context&);
  void evaluate_mtp(Context&, const Tensor& h);
  Tensor final_norm(Context&, const Tensor& x, const Tensor& rstd);

  GlmConfig config_;
  ModelOptions options_;
  std::deque<DecoderLayer> layers_;
  Parameter* norm_;
  std::optional<Mtp> mtp_;
  Tensor inv_freq_;
};

}  // namespace hyscale
