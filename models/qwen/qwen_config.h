// config.json of Qwen3.8-Flash-Next (model_type qwen4_exp, or its text part alone, qwen4_exp_text) as numbers.
// Source: the released configuration.
#pragma once
#include <nlohmann/json.hpp>
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gate/gate.h"
#include "kernels/ngram_hash/ngram_hash.h"
#include "models/layers/moe.h"

namespace hyscale {

// Residual streams with gates (kernels/gated_residual).
struct GatedResidualConfig {
  int64_t hidden_size = 0, streams = 0, rank = 0;
  float eps = 1e-6f;
  int64_t width() const { return streams * hidden_size; }
};

struct GatedDeltaConfig {
  int64_t hidden_size = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, taps = 0;
  GateActivation output_gate = GateActivation::silu;
  float eps = 1e-6f;
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
};

struct BlockIndexerConfig {
  int64_t hidden_size = 0, num_heads = 0, head_dim = 0, rope_dim = 0;
  int64_t ratio = 0, k = 0;  // tokens of a block, selected blocks
  float eps = 1e-6f;
};

struct GatedAttentionConfig {
  int64_t hidden_size = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0, rope_dim = 0;
  float eps = 1e-6f;
  BlockIndexerConfig indexer;
};

struct NgramConfig {
  int64_t embed_dim = 0, taps = 0, dilation = 3, parts = 1;  // parts: tensors of the table in files
  NgramTableRule rule;
  int32_t eos = 0;
};

struct QwenConfig {
  std::string prefix;  // of tensor names: "model.", or "model.language_model."
  int64_t vocab_size = 0, num_layers = 0, hidden_size = 0, shared_size = 0;  // shared_size: inner width of the shared expert
  int64_t mtp_layers = 0;
  float rope_theta = 0, initializer_range = 0.02f;
  GatedResidualConfig residual;
  GatedDeltaConfig delta;
  GatedAttentionConfig attention;
  MoeConfig moe;
  NgramConfig ngram;
  std::vector<bool> sparse_layer;   // [num_layers]: sparse attention, else gated delta rule
  std::vector<int> ngram_number;    // [num_layers]: which n-gram memory the layer has; -1: none
  // Tokens to its left that a token reads beside attention and the recurrence: taps, its block, n-grams.
  int64_t reach() const { return std::max({delta.taps - 1, attention.indexer.ratio - 1, (ngram.taps - 1) * ngram.dilation, ngram.rule.order - 1}); }
};

// Throws UserError naming `path`, the key and what would be right: missing or mistyped keys, and values that would change
// the mathematics beyond what is implemented. Keys that do not matter for training are kept as they are.
QwenConfig parse_qwen_config(const nlohmann::json&, const std::string& path);

}  // namespace hyscale
