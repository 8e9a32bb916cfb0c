#include "models/deepseek_v4/v4_config.h"

#include "core/json.h"

namespace hyscale {
namespace {

// Values that would change the mathematics.
void refuse_unsupported(const JsonReader& r) {
  r.only("model_type", "deepseek_v4");
  r.only("attention_bias", false);
  r.only("mlp_bias", false);
  r.only("hidden_act", "silu");
  r.only("tie_word_embeddings", false);
  r.only("scoring_func", "sqrtsoftplus");
  r.only("topk_method", "noaux_tc");
  r.only("num_key_value_heads", 1);
  if (r.number_or("attention_dropout", 0) != 0) r.fail("attention_dropout", r.raw("attention_dropout"), "0: dropout is not supported");
}

Compression compression_of(const JsonReader& r, const std::string& key, const nlohmann::json& type) {
  if (type == "sliding_attention") return Compression::none;
  if (type == "compressed_sparse_attention") return Compression::selected;
  if (type == "heavily_compressed_attention") return Compression::all;
  r.fail(key, type, "\"sliding_attention\", \"compressed_sparse_attention\" or \"heavily_compressed_attention\"");
}

// The layers' entries in a list that may go on with MTP's.
const nlohmann::json& layer_list(const JsonReader& r, const char* key, const V4Config& c) {
  const nlohmann::json& list = r.raw(key);
  if (!list.is_array() || list.size() < static_cast<size_t>(c.num_layers)) r.fail(key, list, concat("a list of ", c.num_layers, " entries"));
  return list;
}

void read_layer_types(const JsonReader& r, const std::string& path, V4Config& c) {
  const nlohmann::json& types = layer_list(r, "layer_types", c);
  for (size_t i = 0; i < static_cast<size_t>(c.num_layers); ++i) {
    c.compression.push_back(compression_of(r, concat("layer_types[", i, "]"), types[i]));
    c.ratios.push_back(0);
    if (c.compression.back() == Compression::none) continue;
    if (!r.has("compress_rates")) r.fail("compress_rates", nullptr, "the ratio of each kind of compressed layer");
    c.ratios.back() = JsonReader(r.raw("compress_rates"), path + ": compress_rates").integer(types[i].get<std::string>().c_str(), 1, 1 << 20);
  }
}

// 0: a layer without compression; 4: one that selects; else one that reads all of its entries.
void read_compress_ratios(const JsonReader& r, V4Config& c) {
  const nlohmann::json& ratios = layer_list(r, "compress_ratios", c);
  for (size_t i = 0; i < static_cast<size_t>(c.num_layers); ++i) {
    if (!ratios[i].is_number_integer() || ratios[i] < 0) r.fail(concat("compress_ratios[", i, "]"), ratios[i], "0, 4 or a larger ratio");
    const int64_t ratio = ratios[i].get<int64_t>();
    c.ratios.push_back(ratio);
    c.compression.push_back(ratio == 0 ? Compression::none : ratio == 4 ? Compression::selected : Compression::all);
  }
}

void read_yarn(const JsonReader& rope, V4Config& c) {
  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (type == "default") return;
  if (type != "yarn") rope.fail("rope_type", type, "\"yarn\" or \"default\"");
  rope.only("attention_factor", 1.0);
  c.scaled_rope = true;
  c.yarn = {rope.number("factor"), rope.number("original_max_position_embeddings"), rope.number_or("beta_fast", 32), rope.number_or("beta_slow", 1)};
}

void read_rope(const JsonReader& r, const std::string& path, V4Config& c) {
  if (r.has("rope_parameters")) {
    const JsonReader both(r.raw("rope_parameters"), path + ": rope_parameters");
    for (const char* key : {"main", "compress"})
      if (!both.has(key)) both.fail(key, nullptr, "an object with rope_theta");
    const JsonReader main(both.raw("main"), path + ": rope_parameters.main"), compress(both.raw("compress"), path + ": rope_parameters.compress");
    main.only("rope_type", "default");
    c.rope_theta = static_cast<float>(main.number("rope_theta"));
    c.compressed_rope_theta = static_cast<float>(compress.number("rope_theta"));
    return read_yarn(compress, c);
  }
  c.rope_theta = static_cast<float>(r.number("rope_theta"));
  c.compressed_rope_theta = static_cast<float>(r.number("compress_rope_theta"));
  if (r.has("rope_scaling")) read_yarn(JsonReader(r.raw("rope_scaling"), path + ": rope_scaling"), c);
}

void read_moe(const JsonReader& r, V4Config& c) {
  MoeConfig& m = c.moe;
  m.hidden_size = c.hidden_size;
  m.intermediate_size = r.integer("moe_intermediate_size", 1);
  m.num_experts = r.integer("n_routed_experts", 1, 1 << 16);
  m.num_shared_experts = r.integer_or("n_shared_experts", 0, 0);
  m.rule.k = r.integer("num_experts_per_tok", 1, m.num_experts);
  m.rule.normalize = r.boolean_or("norm_topk_prob", true);
  m.rule.scaling = static_cast<float>(r.number_or("routed_scaling_factor", 1));
  m.rule.score = RouterScore::sqrt_softplus;
  m.names = {"w1", "w3", "w2"};
  m.bias_name = "bias";
  if (r.has("swiglu_limit")) m.limit = static_cast<float>(r.number("swiglu_limit"));
  if (!(m.limit > 0)) r.fail("swiglu_limit", r.raw("swiglu_limit"), "a positive number, or no such key");
}

// Hashed layers by name, or the first num_hash_layers.
void read_hashed_layers(const JsonReader& r, V4Config& c) {
  if (r.has("mlp_layer_types")) {
    for (const std::string& type : r.words("mlp_layer_types", c.num_layers, {"hash_moe", "moe"})) c.hashed.push_back(type == "hash_moe");
    return;
  }
  const int64_t hashed = r.integer_or("num_hash_layers", 0, 0);
  for (int64_t i = 0; i < c.num_layers; ++i) c.hashed.push_back(i < hashed);
}

}  // namespace

V4Config parse_v4_config(const nlohmann::json& json, const std::string& path) {
  const JsonReader r(json, path);
  refuse_unsupported(r);
  V4Config c;
  c.vocab_size = r.integer("vocab_size", 1, int64_t{1} << 30);
  c.num_layers = r.integer("num_hidden_layers", 1, 10000);
  c.hidden_size = r.integer("hidden_size", 1);
  c.mtp_layers = r.integer_or("num_nextn_predict_layers", 0, 0);
  c.norm_eps = static_cast<float>(r.number("rms_norm_eps"));
  c.initializer_range = static_cast<float>(r.number_or("initializer_range", 0.02));
  c.num_heads = r.integer("num_attention_heads", 1);
  c.head_dim = r.integer("head_dim", 2);
  c.rope_dim = r.integer("qk_rope_head_dim", 2, c.head_dim);
  if (c.rope_dim % 2 != 0) r.fail("qk_rope_head_dim", c.rope_dim, "an even number");
  c.q_rank = r.integer("q_lora_rank", 1);
  c.groups = r.integer("o_groups", 1);
  if (c.num_heads % c.groups != 0) r.fail("o_groups", c.groups, concat("a divisor of num_attention_heads, ", c.num_heads));
  c.group_rank = r.integer("o_lora_rank", 1);
  c.window = r.integer("sliding_window", 1);
  c.index_heads = r.integer("index_n_heads", 1);
  c.index_dim = r.integer("index_head_dim", 2);
  if (c.index_dim < c.rope_dim) r.fail("index_head_dim", c.index_dim, concat("at least qk_rope_head_dim, ", c.rope_dim));
  c.index_k = r.integer("index_topk", 1, 1 << 20);
  c.hyper = {c.hidden_size, r.integer("hc_mult", 1, 8), r.integer_or("hc_sinkhorn_iters", 20, 1), static_cast<float>(r.number_or("hc_eps", 1e-6)), c.norm_eps};
  if (!r.has("layer_types") && !r.has("compress_ratios")) r.fail("layer_types", nullptr, "the type of every layer, or compress_ratios");
  r.has("layer_types") ? read_layer_types(r, path, c) : read_compress_ratios(r, c);
  read_rope(r, path, c);
  read_moe(r, c);
  read_hashed_layers(r, c);
  return c;
}

}  // namespace hyscale
