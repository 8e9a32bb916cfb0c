// config.json of GLM-5, 5.1 and 5.2 (model_type glm_moe_dsa) as numbers. Source: the released configurations.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/layers/indexer.h"
#include "models/layers/moe.h"

namespace hyscale {

struct GlmConfig {
  int64_t vocab_size = 0, num_layers = 0, intermediate_size = 0;
  int64_t mtp_layers = 0;  // num_nextn_predict_layers
  bool mtp_shares_selection = false;  // index_share_for_mtp_iteration: later depths read the first depth's selection
  float norm_eps = 1e-5f;
  float initializer_range = 0.02f;
  MlaConfig attention;
  IndexerConfig indexer;
  MoeConfig moe;
  std::vector<bool> dense_layer;     // [num_layers]: dense MLP instead of experts
  std::vector<bool> selecting_layer; // [num_layers]: owns an indexer; others reuse the nearest earlier selection
};

// Throws UserError naming `path`, the key and what would be right: missing or mistyped keys, and values that would change
// the mathematics beyond what is implemented. Keys that do not matter for training are kept as they are.
GlmConfig parse_glm_config(const nlohmann::json&, const std::string& path);

}  // namespace hyscale
