#include "models/glm/glm_config.h"

#include <cmath>

#include "core/json.h"

namespace hyscale {
namespace {

float rope_theta(const JsonReader& r, const std::string& path) {
  if (!r.has("rope_parameters")) return static_cast<float>(r.number("rope_theta"));
  const JsonReader rope(r.raw("rope_parameters"), path + ": rope_parameters");
  rope.only("rope_type", "default");
  rope.only("partial_rotary_factor", 1.0);
  return static_cast<float>(rope.number("rope_theta"));
}

// One flag per layer from a list of two names, or from `rule` when the list is absent.
template <typename Rule>
std::vector<bool> layer_flags(const JsonReader& r, const char* key, const char* on, const char* off, int64_t num_layers, Rule rule) {
  std::vector<bool> flags(static_cast<size_t>(num_layers));
  const std::vector<std::string> words = r.has(key) ? r.words(key, num_layers, {on, off}) : std::vector<std::string>();
  for (size_t i = 0; i < flags.size(); ++i) flags[i] = words.empty() ? rule(static_cast<int64_t>(i)) : words[i] == on;
  return flags;
}

// Values that would change the mathematics.
void refuse_unsupported(const JsonReader& r, const std::string& path) {
  r.only("model_type", "glm_moe_dsa");
  r.only("attention_bias", false);
  r.only("mlp_bias", false);
  r.only("hidden_act", "silu");
  r.only("tie_word_embeddings", false);
  r.only("scoring_func", "sigmoid");
  r.only("topk_method", "noaux_tc");
  r.only("moe_layer_freq", 1);
  r.only("moe_router_dtype", "float32");
  if (r.has("rope_scaling")) r.fail("rope_scaling", r.raw("rope_scaling"), "null: scaled rope is not supported");
  // What such files hold is read by checkpoint/dequantize.h, block sizes are checked there.
  if (r.has("quantization_config")) JsonReader(r.raw("quantization_config"), path + ": quantization_config").only("quant_method", "fp8");
  if (r.has("index_topk_pattern")) r.fail("index_topk_pattern", r.raw("index_topk_pattern"), "no pattern: use indexer_types");
  if (r.number_or("attention_dropout", 0) != 0) r.fail("attention_dropout", r.raw("attention_dropout"), "0: dropout is not supported");
}

MlaConfig attention_config(const JsonReader& r, const std::string& path) {
  MlaConfig a;
  a.hidden_size = r.integer("hidden_size", 1);
  a.num_heads = r.integer("num_attention_heads", 1);
  if (r.integer_or("num_key_value_heads", a.num_heads, 1) != a.num_heads)
    r.fail("num_key_value_heads", r.raw("num_key_value_heads"), concat("num_attention_heads, ", a.num_heads));
  a.q_rank = r.integer("q_lora_rank", 1);
  a.kv_rank = r.integer("kv_lora_rank", 1);
  a.nope_dim = r.integer("qk_nope_head_dim", 1);
  a.rope_dim = r.integer("qk_rope_head_dim", 2);
  if (a.rope_dim % 2 != 0) r.fail("qk_rope_head_dim", a.rope_dim, "an even number");
  if (r.integer_or("qk_head_dim", a.nope_dim + a.rope_dim, 1) != a.nope_dim + a.rope_dim)
    r.fail("qk_head_dim", r.raw("qk_head_dim"), concat("qk_nope_head_dim + qk_rope_head_dim, ", a.nope_dim + a.rope_dim));
  a.value_dim = r.integer("v_head_dim", 1);
  a.rope_theta = rope_theta(r, path);
  a.rope_interleaved = r.boolean_or("rope_interleave", true);
  a.scale = 1 / std::sqrt(static_cast<float>(a.nope_dim + a.rope_dim));
  return a;
}

MoeConfig moe_config(const JsonReader& r) {
  MoeConfig m;
  m.hidden_size = r.integer("hidden_size", 1);
  m.intermediate_size = r.integer("moe_intermediate_size", 1);
  m.num_experts = r.integer("n_routed_experts", 1, 1 << 16);
  m.num_shared_experts = r.integer_or("n_shared_experts", 0, 0);
  m.rule.k = r.integer("num_experts_per_tok", 1, m.num_experts);
  m.rule.num_groups = r.integer_or("n_group", 1, 1);
  m.rule.kept_groups = r.integer_or("topk_group", 1, 1);
  if (m.num_experts % m.rule.num_groups != 0) r.fail("n_group", m.rule.num_groups, concat("a divisor of n_routed_experts, ", m.num_experts));
  if (m.rule.kept_groups > m.rule.num_groups) r.fail("topk_group", m.rule.kept_groups, concat("at most n_group, ", m.rule.num_groups));
  if (m.rule.k > m.rule.kept_groups * (m.num_experts / m.rule.num_groups))
    r.fail("num_experts_per_tok", m.rule.k, "at most the experts of the kept groups");
  m.rule.normalize = r.boolean_or("norm_topk_prob", true);
  m.rule.scaling = static_cast<float>(r.number_or("routed_scaling_factor", 1));
  return m;
}

// No file of a few lines describes more than can be counted: elements in 64 bits, with room for bytes and sums, and experts, of
// which each takes memory before any weight does.
void check_size(const JsonReader& r, const GlmConfig& c) {
  constexpr double kMostElements = 1e14;
  constexpr int64_t kMostExperts = 1 << 18;
  const auto d = [](int64_t n) { return static_cast<double>(n); };
  const MlaConfig& a = c.attention;
  const double attention = d(a.hidden_size) * d(a.q_rank + a.kv_rank + a.rope_dim) +
                           d(a.num_heads) * (d(a.q_rank) * d(a.nope_dim + a.rope_dim) + d(a.kv_rank) * d(a.nope_dim + a.value_dim) + d(a.value_dim) * d(a.hidden_size));
  const double indexer = d(c.indexer.num_heads) * d(c.indexer.head_dim) * d(a.q_rank) + d(a.hidden_size) * d(c.indexer.head_dim + c.indexer.num_heads);
  const double mlp = 3 * d(a.hidden_size) * (d(c.intermediate_size) + d(c.moe.intermediate_size) * d(c.moe.num_experts + c.moe.num_shared_experts));
  const double elements = 2 * d(c.vocab_size) * d(a.hidden_size) + d(c.num_layers + c.mtp_layers) * (attention + indexer + mlp);
  if (!(elements <= kMostElements)) r.fail("hidden_size", a.hidden_size, concat("sizes that make at most ", kMostElements, " elements, not ", elements));
  if (c.num_layers * c.moe.num_experts > kMostExperts)
    r.fail("n_routed_experts", c.moe.num_experts, concat("at most ", kMostExperts, " in all of the ", c.num_layers, " layers"));
}

}  // namespace

GlmConfig parse_glm_config(const nlohmann::json& json, const std::string& path) {
  const JsonReader r(json, path);
  refuse_unsupported(r, path);
  GlmConfig c;
  c.vocab_size = r.integer("vocab_size", 1, int64_t{1} << 30);
  c.num_layers = r.integer("num_hidden_layers", 1, 10000);
  c.intermediate_size = r.integer("intermediate_size", 1);
  c.mtp_layers = r.integer_or("num_nextn_predict_layers", 0, 0);
  c.mtp_shares_selection = r.boolean_or("index_share_for_mtp_iteration", false);
  c.norm_eps = static_cast<float>(r.number("rms_norm_eps"));
  c.initializer_range = static_cast<float>(r.number_or("initializer_range", 0.02));
  c.attention = attention_config(r, path);
  c.indexer = {c.attention.hidden_size, c.attention.q_rank, r.integer("index_n_heads", 1), r.integer("index_head_dim", 2), c.attention.rope_dim,
               r.integer("index_topk", 1, 1 << 20), r.boolean_or("indexer_rope_interleave", true)};
  if (c.indexer.head_dim < c.indexer.rope_dim)
    r.fail("index_head_dim", c.indexer.head_dim, concat("at least qk_rope_head_dim, ", c.indexer.rope_dim));
  c.moe = moe_config(r);
  const int64_t first_moe = r.integer_or("first_k_dense_replace", 0, 0);
  c.dense_layer = layer_flags(r, "mlp_layer_types", "dense", "sparse", c.num_layers, [&](int64_t i) { return i < first_moe; });
  const int64_t frequency = r.integer_or("index_topk_freq", 1, 1), offset = r.integer_or("index_skip_topk_offset", 2, 0);
  c.selecting_layer = layer_flags(r, "indexer_types", "full", "shared", c.num_layers,
                                  [&](int64_t i) { return std::max<int64_t>(i - offset + 1, 0) % frequency == 0; });
  check_size(r, c);
  if (!c.selecting_layer[0]) r.fail("indexer_types[0]", "shared", "\"full\": the first layer has no earlier selection to share");
  return c;
}

}  // namespace hyscale
