#include "models/registry.h"

#include <fstream>

#include "core/json.h"
#include "models/glm/glm_model.h"

namespace hyscale {

std::unique_ptr<Model> make_model(const nlohmann::json& hf_config, const std::string& path, const ModelOptions& options) {
  const std::string type = JsonReader(hf_config, path).text_or("model_type", "");
  if (type == "glm_moe_dsa") return std::make_unique<GlmModel>(hf_config, path, options);
  throw UserError(concat(path, ": \"model_type\" is \"", type, "\"; supported: \"glm_moe_dsa\" (GLM-5, 5.1, 5.2)"));
}

nlohmann::json read_hf_config(const std::string& path) {
  if (!std::ifstream(path)) throw UserError(path + ": cannot be read; expected a Hugging Face config.json");
  const nlohmann::json config = read_json_file(path);
  if (!config.is_object()) throw UserError(path + ": expected a JSON object");
  return config;
}

}  // namespace hyscale
