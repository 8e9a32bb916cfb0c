#include "models/registry.h"

#include <fstream>

#include "models/deepseek_v4/v4_model.h"
#include "models/glm/glm_model.h"

namespace hyscale {

std::unique_ptr<Model> make_model(const nlohmann::json& hf_config, const std::string& path, const ModelOptions& options) {
  const std::string type = hf_config.is_object() ? hf_config.value("model_type", "") : "";
  if (type == "glm_moe_dsa") return std::make_unique<GlmModel>(hf_config, path, options);
  if (type == "deepseek_v4") return std::make_unique<V4Model>(hf_config, path, options);
  throw UserError(concat(path, ": \"model_type\" is \"", type, "\"; supported: \"glm_moe_dsa\" (GLM-5, 5.1, 5.2), \"deepseek_v4\""));
}

nlohmann::json read_hf_config(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw UserError(path + ": cannot be read; expected a Hugging Face config.json");
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& e) {
    throw UserError(concat(path, ": is not valid JSON: ", e.what()));
  }
}

}  // namespace hyscale
