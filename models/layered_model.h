// What the models of all families have alike beside their layers: parameters, counters of expert loads and constants on the device.
#pragma once
#include <span>
#include <vector>

#include "models/layers/moe.h"
#include "models/model.h"

namespace hyscale {

class LayeredModel : public Model {
 public:
  ParameterStore& parameters() override { return store_; }
  int num_selecting_layers() const override { return num_slots_; }
  const nlohmann::json& hf_config() const override { return hf_config_; }
  Tensor expert_counts() override { return counts_; }
  void after_step(bool applied, Stream) override;
  int64_t num_active_elements() const override;

 protected:
  LayeredModel(const nlohmann::json& hf_config, float router_bias_update_rate) : hf_config_(hf_config), router_bias_update_rate_(router_bias_update_rate) {}

  virtual const MoeConfig& experts() const = 0;
  // Tables that tokens look up, beside the embedding: no product takes part of them in a token's forward.
  virtual bool is_looked_up(const Parameter&) const { return false; }

  // Once: rope frequencies of each kind on the device, in this order, and counters that the MoE layers are bound to.
  std::vector<Tensor> make_constants(Context&, std::span<const std::vector<float>> frequencies);
  bool has_constants() const { return constants_.bytes() > 0; }

  nlohmann::json hf_config_;
  ParameterStore store_;
  Parameter *embedding_ = nullptr, *lm_head_ = nullptr;
  int head_unit_ = 0, num_slots_ = 0;
  std::vector<Moe*> moe_layers_;

 private:
  float router_bias_update_rate_;
  Buffer constants_;
  Tensor counts_;
};

}  // namespace hyscale
