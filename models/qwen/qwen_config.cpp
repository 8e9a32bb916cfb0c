#include "models/qwen/qwen_config.h"

#include <cmath>

#include "core/json.h"

namespace hyscale {
namespace {

// Values that would change the mathematics.
void refuse_unsupported(const JsonReader& r) {
  r.only("attention_bias", false);
  r.only("hidden_act", "silu");
  r.only("tie_word_embeddings", false);
  r.only("norm_topk_prob", true);
  r.only("indexer_kv_heads", 1);
  r.only("ngram_size", 3);
  r.only("mtp_use_dedicated_embeddings", false);
  if (r.has("quantization_config")) r.fail("quantization_config", r.raw("quantization_config"), "null: quantized weights are not supported");
  if (r.number_or("attention_dropout", 0) != 0) r.fail("attention_dropout", r.raw("attention_dropout"), "0: dropout is not supported");
}

// Numbers of a head that turn: the first partial_rotary_factor of it. The three position rows of multimodal rope are equal for text, so
// its sections do not matter.
int64_t rotary_dim(const JsonReader& r, const JsonReader& rope, int64_t head_dim) {
  const double factor = rope.has("partial_rotary_factor") ? rope.number("partial_rotary_factor") : r.number("partial_rotary_factor");
  const int64_t dim = std::llround(factor * static_cast<double>(head_dim));
  if (dim < 2 || dim > head_dim || dim % 2 != 0) r.fail("partial_rotary_factor", factor, concat("an even number of the ", head_dim, " numbers of a head"));
  return dim;
}

GatedAttentionConfig attention_config(const JsonReader& r, const JsonReader& rope, float eps) {
  GatedAttentionConfig a;
  a.hidden_size = r.integer("hidden_size", 1);
  a.num_heads = r.integer("num_attention_heads", 1);
  a.num_kv_heads = r.integer("num_key_value_heads", 1, a.num_heads);
  if (a.num_heads % a.num_kv_heads != 0) r.fail("num_key_value_heads", a.num_kv_heads, concat("a divisor of num_attention_heads, ", a.num_heads));
  a.head_dim = r.integer("head_dim", 2);
  a.rope_dim = rotary_dim(r, rope, a.head_dim);
  a.eps = eps;
  BlockIndexerConfig& x = a.indexer;
  x.hidden_size = a.hidden_size;
  x.num_heads = r.integer("indexer_n_heads", 1);
  x.head_dim = r.integer("indexer_head_dim", 2);
  x.rope_dim = a.rope_dim;  // the indexer turns by the angles of the main attention
  if (x.head_dim < x.rope_dim) r.fail("indexer_head_dim", x.head_dim, concat("at least the rotary width of a head, ", x.rope_dim));
  x.ratio = r.integer("indexer_compress_ratio", 1, 1 << 16);
  const int64_t budget = r.integer("indexer_budget", 1, 1 << 20);
  if (budget % x.ratio != 0) r.fail("indexer_budget", budget, concat("a multiple of indexer_compress_ratio, ", x.ratio));
  x.k = budget / x.ratio;
  x.eps = eps;
  return a;
}

GatedDeltaConfig delta_config(const JsonReader& r, float eps) {
  GatedDeltaConfig d;
  d.hidden_size = r.integer("hidden_size", 1);
  d.key_heads = r.integer("linear_num_key_heads", 1);
  d.value_heads = r.integer("linear_num_value_heads", 1);
  if (d.value_heads % d.key_heads != 0) r.fail("linear_num_value_heads", d.value_heads, concat("a multiple of linear_num_key_heads, ", d.key_heads));
  d.key_dim = r.integer("linear_key_head_dim", 1);
  d.value_dim = r.integer("linear_value_head_dim", 1);
  d.taps = r.integer("linear_conv_kernel_dim", 1);
  const std::string gate = r.text_or("output_gate_type", "silu");
  if (gate != "sigmoid" && gate != "silu" && gate != "swish") r.fail("output_gate_type", gate, "\"sigmoid\" or \"silu\"");
  d.output_gate = gate == "sigmoid" ? GateActivation::sigmoid : GateActivation::silu;
  d.eps = eps;
  return d;
}

MoeConfig moe_config(const JsonReader& r, bool fused) {
  MoeConfig m;
  m.hidden_size = r.integer("hidden_size", 1);
  m.intermediate_size = r.integer("moe_intermediate_size", 1);
  m.num_experts = r.integer("num_experts", 1, 1 << 16);
  m.rule.k = r.integer("num_experts_per_tok", 1, m.num_experts);
  m.rule.score = RouterScore::softmax;
  m.fused_experts = fused;
  return m;
}

NgramConfig ngram_config(const JsonReader& r) {
  NgramConfig n;
  n.embed_dim = r.integer("ple_embed_dim", 1);
  n.taps = r.integer("ple_conv_kernel_size", 1);
  n.parts = r.integer_or("split_ngram_parts", 1, 1);
  n.rule.vocabulary = r.integer("vocab_size", 1, int64_t{1} << 30);
  n.rule.order = r.integer("ngram_size", 2);
  n.rule.heads_per_order = r.integer("heads_per_ngram", 1);
  n.rule.size_base = r.integer("ngram_vocab_size_base", 2);
  n.rule.divisor = r.integer_or("make_ngram_vocab_size_divisible_by", 1, 1);
  n.rule.seed = r.integer("seed", 0);
  n.eos = static_cast<int32_t>(r.integer("eos_token_id", 0, n.rule.vocabulary - 1));
  const int64_t heads = (n.rule.order - 1) * n.rule.heads_per_order;
  if (n.embed_dim % heads != 0) r.fail("ple_embed_dim", n.embed_dim, concat("a multiple of the ", heads, " n-gram heads"));
  return n;
}

// Sparse layers have had three names; released files say full_attention.
std::vector<bool> sparse_layers(const JsonReader& r, int64_t num_layers) {
  std::vector<bool> flags;
  if (r.has("layer_types")) {
    for (const std::string& type : r.words("layer_types", num_layers, {"linear_attention", "qwen_sparse_attention", "full_attention", "deepseek_sparse_attention"}))
      flags.push_back(type != "linear_attention");
    return flags;
  }
  const int64_t interval = r.integer("full_attention_interval", 1);
  for (int64_t i = 0; i < num_layers; ++i) flags.push_back((i + 1) % interval == 0);
  return flags;
}

// ple_layer_ids count layers from 1.
std::vector<int> ngram_numbers(const JsonReader& r, int64_t num_layers) {
  std::vector<int> numbers(static_cast<size_t>(num_layers), -1);
  if (!r.has("ple_layer_ids")) return numbers;
  const nlohmann::json& ids = r.raw("ple_layer_ids");
  if (!ids.is_array()) r.fail("ple_layer_ids", ids, "a list of layers, counted from 1");
  int next = 0;
  for (const nlohmann::json& id : ids) {
    const int64_t layer = id.is_number_integer() ? id.get<int64_t>() : 0;
    if (layer < 1 || layer > num_layers || numbers[static_cast<size_t>(layer - 1)] >= 0) r.fail("ple_layer_ids", ids, concat("different layers from 1 to ", num_layers));
    numbers[static_cast<size_t>(layer - 1)] = next++;
  }
  return numbers;
}

}  // namespace

QwenConfig parse_qwen_config(const nlohmann::json& json, const std::string& path) {
  const JsonReader outer(json, path);
  const bool whole = outer.text_or("model_type", "") == "qwen4_exp";  // with a vision tower around the text model
  if (whole && !outer.has("text_config")) outer.fail("text_config", nullptr, "the configuration of the text model");
  if (whole) refuse_unsupported(outer);
  const std::string place = whole ? path + ": text_config" : path;
  const JsonReader r(whole ? json["text_config"] : json, place);
  refuse_unsupported(r);
  QwenConfig c;
  c.prefix = whole ? "model.language_model." : "model.";
  c.vocab_size = r.integer("vocab_size", 1, int64_t{1} << 30);
  c.num_layers = r.integer("num_hidden_layers", 1, 10000);
  c.hidden_size = r.integer("hidden_size", 1);
  c.shared_size = r.integer("shared_expert_intermediate_size", 1);
  c.mtp_layers = r.integer_or("mtp_num_hidden_layers", 0, 0);
  c.initializer_range = static_cast<float>(r.number_or("initializer_range", 0.02));
  const float eps = static_cast<float>(r.number("rms_norm_eps"));
  if (!r.has("rope_parameters")) r.fail("rope_parameters", nullptr, "rope_type, rope_theta and partial_rotary_factor");
  const JsonReader rope(r.raw("rope_parameters"), place + ": rope_parameters");
  rope.only("rope_type", "default");
  c.rope_theta = static_cast<float>(rope.number("rope_theta"));
  if (r.has("mtp")) JsonReader(r.raw("mtp"), place + ": mtp").only("rope_theta", rope.number("rope_theta"));
  c.residual = {c.hidden_size, r.integer("hc_count", 1), r.integer("hc_lowrank", 1), eps};
  c.delta = delta_config(r, eps);
  c.attention = attention_config(r, rope, eps);
  c.moe = moe_config(r, whole);
  c.sparse_layer = sparse_layers(r, c.num_layers);
  c.ngram_number = ngram_numbers(r, c.num_layers);
  if (r.has("ple_layer_ids") && !r.raw("ple_layer_ids").empty()) c.ngram = ngram_config(r);
  return c;
}

}  // namespace hyscale
