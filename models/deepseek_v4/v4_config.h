// config.json of DeepSeek-V4 (model_type deepseek_v4) as numbers: the released form (compress_ratios, rope_scaling) and the
// one of transformers (layer_types, compress_rates, rope_parameters). Source: the released configurations.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/rope/rope.h"
#include "models/layers/hyper_connection.h"
#include "models/layers/moe.h"

namespace hyscale {

// How a layer sees tokens beyond its window.
enum class Compression : uint8_t {
  none,      // not at all
  selected,  // the k best of its compressed entries (CSA)
  all,       // every entry, heavily compressed (HCA)
};

struct V4Config {
  int64_t vocab_size = 0, num_layers = 0, hidden_size = 0, mtp_layers = 0;
  float norm_eps = 1e-6f, initializer_range = 0.02f;
  int64_t num_heads = 0, head_dim = 0, rope_dim = 0, q_rank = 0, groups = 1, group_rank = 0, window = 1;
  int64_t index_heads = 0, index_dim = 0, index_k = 0;
  std::vector<Compression> compression;  // [num_layers]
  std::vector<int64_t> ratios;           // [num_layers]; 0 without compression
  float rope_theta = 10000, compressed_rope_theta = 10000;
  YarnScaling yarn;                      // of layers with compression
  bool scaled_rope = false;
  HyperConnectionConfig hyper;
  MoeConfig moe;
  std::vector<bool> hashed;              // [num_layers]: experts by token
};

// Throws UserError naming `path`, the key and what would be right.
V4Config parse_v4_config(const nlohmann::json&, const std::string& path);

}  // namespace hyscale
