// GLM-5, 5.1 and 5.2: embedding, decoder layers, final norm, LM head, and MTP as an option.
#pragma once
#include "models/glm/decoder_layer.h"
#include "models/glm/mtp.h"
#include "models/layer_stack.h"
#include "models/layered_model.h"
#include "models/registry.h"

namespace hyscale {

class GlmModel : public LayeredModel {
 public:
  GlmModel(const nlohmann::json& hf_config, const std::string& path, const ModelOptions&);

  int64_t vocabulary_size() const override { return config_.vocab_size; }
  SequenceNeeds sequence_needs() const override { return {layers_.mtp() ? layers_.mtp()->depths() : 0, {}}; }
  std::string mtp_prefix() const override { return concat("model.layers.", config_.num_layers, "."); }
  ForwardFlops forward_flops(int64_t document_tokens) const override;
  float initializer_range() const override { return config_.initializer_range; }

  void train_step(Context&, Recompute) override;
  void evaluate(Context&) override;
  Tensor logits(Context&, Arena& out) override;

 private:
  const MoeConfig& experts() const override { return config_.moe; }
  using Layers = LayerStack<GlmLayer, GlmMtp, Tensor>;
  Tensor embed(Context&);
  void prepare(Context&);  // constants and counters on the device, once
  Tensor final_norm(Context&, const Tensor& x, const Tensor& rstd);
  void add_losses(Context&, const Tensor& x);  // forward only; x: the last layer's output

  GlmConfig config_;
  Layers layers_{store_};
  Parameter* norm_;
  Tensor inv_freq_;
};

}  // namespace hyscale
