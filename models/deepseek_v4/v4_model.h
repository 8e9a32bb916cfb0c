// DeepSeek-V4: embedding copied to the residual streams, layers, contraction of the streams, final norm, LM head; MTP as an option.
#pragma once
#include <optional>

#include "models/deepseek_v4/decoder_layer.h"
#include "models/deepseek_v4/mtp.h"
#include "models/layer_stack.h"
#include "models/layered_model.h"
#include "models/registry.h"

namespace hyscale {

class V4Model : public LayeredModel {
 public:
  V4Model(const nlohmann::json& hf_config, const std::string& path, const ModelOptions&);

  int64_t vocabulary_size() const override { return config_.vocab_size; }
  SequenceNeeds sequence_needs() const override;
  std::string mtp_prefix() const override { return "mtp.0."; }
  ForwardFlops forward_flops(int64_t document_tokens) const override;
  float initializer_range() const override { return config_.initializer_range; }

  void train_step(Context&, Recompute) override;
  void evaluate(Context&) override;
  Tensor logits(Context&, Arena& out) override;

 private:
  const MoeConfig& experts() const override { return config_.moe; }
  using Layers = LayerStack<V4Layer, V4Mtp, V4Rope>;
  void prepare(Context&);
  Tensor embed(Context&);

  V4Config config_;
  Layers layers_{store_};
  std::optional<V4Head> head_;
  V4Rope rope_;
};

}  // namespace hyscale
