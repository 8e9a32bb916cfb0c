// config.json of GLM: what is counted, derived and refused.
#include <gtest/gtest.h>

#include "models/glm/glm_config.h"
#include "models/registry.h"

namespace hyscale {
namespace {

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
  const auto message = [](const char* key, const nlohmann::json& value) {
    nlohmann::json c = tiny_config();
    c[key] = value;
    try {
      make_model(c, "dir/config.json", {});
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(message("hidden_act", "gelu").find("dir/config.json: \"hidden_act\" is \"gelu\"; expected supported is \"silu\""), std::string::npos) << message("hidden_act", "gelu");
  EXPECT_NE(message("model_type", "llama").find("\"model_type\" is \"llama\"; supported: \"glm_moe_dsa\""), std::string::npos) << message("model_type", "llama");
  EXPECT_NE(message("attention_bias", true).find("attention_bias"), std::string::npos);
  EXPECT_NE(message("q_lora_rank", "big").find("\"q_lora_rank\" is \"big\"; expected an integer"), std::string::npos) << message("q_lora_rank", "big");
  EXPECT_NE(message("kv_lora_rank", nullptr).find("\"kv_lora_rank\" is missing"), std::string::npos) << message("kv_lora_rank", nullptr);
  EXPECT_NE(message("num_experts_per_tok", 9).find("from 1 to 8"), std::string::npos) << message("num_experts_per_tok", 9);
  EXPECT_NE(message("rope_parameters", nlohmann::json{{"rope_type", "yarn"}, {"rope_theta", 1e4}}).find("rope_type"), std::string::npos);
  EXPECT_NE(message("rope_parameters", nlohmann::json{{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}).find("partial_rotary_factor"), std::string::npos);
  EXPECT_EQ(message("rope_parameters", nlohmann::json{{"rope_theta", 1e4}, {"partial_rotary_factor", 1}}), "accepted");
  EXPECT_NE(message("rope_scaling", nlohmann::json{{"type", "yarn"}}).find("\"rope_scaling\""), std::string::npos);
  EXPECT_EQ(message("rope_scaling", nullptr), "accepted");
  EXPECT_NE(message("quantization_config", nlohmann::json{{"quant_method", "fp8"}}).find("\"quantization_config\""), std::string::npos);
  EXPECT_NE(message("moe_router_dtype", "bfloat16").find("\"moe_router_dtype\" is \"bfloat16\""), std::string::npos);
  EXPECT_NE(message("indexer_types", {"shared", "full", "full"}).find("no earlier selection"), std::string::npos);
}

// A few lines must not ask for more than can be counted, or for millions of experts' parameters.
TEST(GlmConfig, SizesBeyondAnyModelAreRefused) {
  const auto error_with = [](const nlohmann::json& changes) {
    nlohmann::json c = tiny_config();
    c.update(changes);
    try {
      parse_glm_config(c, "config.json");
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const int64_t huge = int64_t{1} << 40;
  EXPECT_EQ(error_with(nlohmann::json::object()), "accepted");
  for (const char* key : {"hidden_size", "intermediate_size", "moe_intermediate_size", "q_lora_rank", "kv_lora_rank", "v_head_dim", "num_nextn_predict_layers"})
    EXPECT_NE(error_with({{key, huge}}).find("expected sizes that make at most 1e+14 elements"), std::string::npos) << key << ": " << error_with({{key, huge}});
  EXPECT_NE(error_with({{"n_routed_experts", 65536}, {"num_hidden_layers", 5}, {"mlp_layer_types", nullptr}, {"indexer_types", nullptr}}).find("expected at most 262144 in all of the 5 layers"), std::string::npos);
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
