// Model weights from and to Hugging Face folders.
#pragma once
#include <string>

#include "checkpoint/hf_folder.h"
#include "models/model.h"

namespace hyscale {

// Fills every parameter. Throws UserError naming folder and tensor when one is missing or has another shape, and when the
// folder holds tensors that the model does not know. `skipped_prefix`: names that may be left unread (the MTP layer of a
// model that does not train it); returns how many were.
int64_t load_weights(ParameterStore&, const HfFolderReader&, const std::string& skipped_prefix = "");

// dtype: "float32" or "bfloat16" for weights; buffers (router bias) are always F32. Sets "dtype" in the config it writes.
void save_weights(const Model&, const ParameterStore&, const std::string& folder, const std::string& dtype);

// Values of a parameter as f32 on the host.
std::vector<float> values_on_host(const Parameter&);

}  // namespace hyscale
