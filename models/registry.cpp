#include "models/registry.h"

#include <fstream>

#include "core/json.h"
#include "models/deepseek_v4/v4_model.h"
#include "models/glm/glm_model.h"
#include "models/qwen/qwen_model.h"

namespace hyscale {

std::unique_ptr<Model> make_model(const nlohmann::json& hf_config, const std::string& path, const ModelOptions& options) {
  const std::string type = JsonReader(hf_config, path).text_or("model_type", "");
  if (options.e4m3_indexer && type != "glm_moe_dsa")
    throw UserError(concat(path, ": \"model_type\" is \"", type, "\" and model.indexer_dtype e4m3; only the indexer of \"glm_moe_dsa\" selects in e4m3: leave it at activation"));
  if (type == "glm_moe_dsa") return std::make_unique<GlmModel>(hf_config, path, options);
  if (type == "deepseek_v4") return std::make_unique<V4Model>(hf_config, path, options);
  if (type == "qwen4_exp" || type == "qwen4_exp_text") return std::make_unique<QwenModel>(hf_config, path, options);
  throw UserError(concat(path, ": \"model_type\" is \"", type, "\"; supported: \"glm_moe_dsa\" (GLM-5, 5.1, 5.2), \"deepseek_v4\", \"qwen4_exp\" (Qwen3.8)"));
}

nlohmann::json read_hf_config(const std::string& path) {
  if (!std::ifstream(path)) throw UserError(path + ": cannot be read; expected a Hugging Face config.json");
  const nlohmann::json config = read_json_file(path);
  if (!config.is_object()) throw UserError(path + ": expected a JSON object");
  return config;
}

}  // namespace hyscale
