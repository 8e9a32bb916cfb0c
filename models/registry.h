// From config.json to a model: one line per family.
#pragma once
#include <memory>
#include <string>

#include "models/model.h"

namespace hyscale {

struct ModelOptions {
  float latent_norm_eps = 1e-6f;  // of the two latent norms (Hugging Face's default; released configurations do not say)
  bool e4m3_indexer = false;      // select by index queries and keys in e4m3
  bool mtp = false;               // train the multi-token-prediction layer
  int mtp_depths = 1;
  float router_bias_update_rate = 0;
  int expert_rank = 0, expert_ranks = 1;  // this rank's place among those that share out the experts
  int rank = 0, ranks = 1;                // among all
};

// Throws UserError naming `path` for an unknown model_type or a configuration that would change the mathematics beyond what the family computes.
std::unique_ptr<Model> make_model(const nlohmann::json& hf_config, const std::string& path, const ModelOptions&);

// Reads a config.json. Throws UserError naming the path when it is missing or no JSON.
nlohmann::json read_hf_config(const std::string& path);

}  // namespace hyscale
