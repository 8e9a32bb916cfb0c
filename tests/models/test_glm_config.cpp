// config.json of GLM: what is counted, derived and refused.
#include "models/glm/glm_config.h"
#include "tests/support/model_runs.h"

namespace hyscale {
namespace {

using test::error_of;

nlohmann::json tiny_config() { return read_hf_config("tests/goldens/glm51/config.json"); }

struct Census {
  int64_t elements, tensors, active;
};
Census census(const char* path, bool mtp) {
  const std::unique_ptr<Model> model = make_model(read_hf_config(path), path, {.mtp = mtp});
  return {model->parameters().num_elements(), model->parameters().num_hf_tensors(), model->num_active_elements()};
}

TEST(GlmConfig, CensusOfTheReleasedModels) {
  const Census glm51 = census("configs/models/glm-5.1.json", true), glm52 = census("configs/models/glm-5.2.json", true);
  EXPECT_EQ(glm51.elements, 753864139008);
  EXPECT_EQ(glm51.tensors, 59870);
  EXPECT_EQ(glm52.elements, 753329940480);
  EXPECT_EQ(glm52.tensors, 59585);
  EXPECT_NEAR(static_cast<double>(glm51.active), 40.8e9, 0.05e9);
}

TEST(GlmConfig, TheShareRuleGivesTheReleasedList) {
  nlohmann::json c = read_hf_config("configs/models/glm-5.2.json");
  const std::vector<bool> listed = parse_glm_config(c, "config.json").selecting_layer;
  c.erase("indexer_types");
  EXPECT_EQ(parse_glm_config(c, "config.json").selecting_layer, listed);
  c["index_skip_topk_offset"] = 2;
  const std::vector<bool> two = parse_glm_config(c, "config.json").selecting_layer;
  c.erase("index_skip_topk_offset");
  EXPECT_EQ(parse_glm_config(c, "config.json").selecting_layer, two);  // transformers' default
  EXPECT_NE(two, listed);
}

// config.json that would change the mathematics is refused by key.
TEST(GlmConfig, UnsupportedConfigurationsAreNamed) {
  const auto message = [](const char* key, const nlohmann::json& value) { return test::config_error(tiny_config(), key, value); };
  EXPECT_CONTAINS(message("hidden_act", "gelu"), "dir/config.json: \"hidden_act\" is \"gelu\"; expected supported is \"silu\"");
  EXPECT_CONTAINS(message("model_type", "llama"), "\"model_type\" is \"llama\"; supported: \"glm_moe_dsa\"");
  EXPECT_CONTAINS(message("attention_bias", true), "attention_bias");
  EXPECT_CONTAINS(message("q_lora_rank", "big"), "\"q_lora_rank\" is \"big\"; expected an integer");
  EXPECT_CONTAINS(message("kv_lora_rank", nullptr), "\"kv_lora_rank\" is missing");
  EXPECT_CONTAINS(message("num_experts_per_tok", 9), "from 1 to 8");
  EXPECT_CONTAINS(message("rope_parameters", nlohmann::json{{"rope_type", "yarn"}, {"rope_theta", 1e4}}), "rope_type");
  EXPECT_CONTAINS(message("rope_parameters", nlohmann::json{{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}), "partial_rotary_factor");
  EXPECT_EQ(message("rope_parameters", nlohmann::json{{"rope_theta", 1e4}, {"partial_rotary_factor", 1}}), "accepted");
  EXPECT_CONTAINS(message("rope_scaling", nlohmann::json{{"type", "yarn"}}), "\"rope_scaling\"");
  EXPECT_EQ(message("rope_scaling", nullptr), "accepted");
  EXPECT_EQ(message("quantization_config", nlohmann::json{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}), "accepted");
  EXPECT_CONTAINS(message("quantization_config", nlohmann::json{{"quant_method", "gptq"}}), "quantization_config: \"quant_method\" is \"gptq\"");
  EXPECT_CONTAINS(message("moe_router_dtype", "bfloat16"), "\"moe_router_dtype\" is \"bfloat16\"");
  EXPECT_CONTAINS(message("indexer_types", {"shared", "full", "full"}), "no earlier selection");
}

// A few lines must not ask for more than can be counted, or for millions of experts' parameters.
TEST(GlmConfig, SizesBeyondAnyModelAreRefused) {
  const auto error_with = [](const nlohmann::json& changes) {
    nlohmann::json c = tiny_config();
    c.update(changes);
    return error_of([&] { parse_glm_config(c, "config.json"); });
  };
  const int64_t huge = int64_t{1} << 40;
  EXPECT_EQ(error_with(nlohmann::json::object()), "accepted");
  for (const char* key : {"hidden_size", "intermediate_size", "moe_intermediate_size", "q_lora_rank", "kv_lora_rank", "v_head_dim", "num_nextn_predict_layers"})
    EXPECT_CONTAINS(error_with({{key, huge}}), "expected sizes that make at most 1e+14 elements");
  EXPECT_CONTAINS(error_with({{"n_routed_experts", 65536}, {"num_hidden_layers", 5}, {"mlp_layer_types", nullptr}, {"indexer_types", nullptr}}), "expected at most 262144 in all of the 5 layers");
  for (const nlohmann::json& type : {nlohmann::json(3), nlohmann::json::array()}) EXPECT_THROW(make_model({{"model_type", type}}, "config.json", {}), UserError);
  EXPECT_THROW(make_model(nlohmann::json::array(), "config.json", {}), UserError);
}

TEST(GlmConfig, DepthsThatWouldShareASelectionAreRefused) {
  nlohmann::json c = tiny_config();
  c["num_nextn_predict_layers"] = 1;
  c["index_share_for_mtp_iteration"] = true;
  EXPECT_NO_THROW(make_model(c, "config.json", {.mtp = true, .mtp_depths = 1}));
  EXPECT_THROW(make_model(c, "config.json", {.mtp = true, .mtp_depths = 2}), UserError);
  c["index_share_for_mtp_iteration"] = false;
  EXPECT_NO_THROW(make_model(c, "config.json", {.mtp = true, .mtp_depths = 2}));
}

}  // namespace
}  // namespace hyscale
