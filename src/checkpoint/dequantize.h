// Tensors of Hugging Face folders as f32, whatever they are stored as. Quantised weights are known by the dtype in the file and
// the scales beside them ("X.weight" with "X.scale", or "X.weight_scale_inv"):
//   F8_E4M3 [r, c], scales [ceil(r / 128), ceil(c / 128)]: value x scale of its block of 128 x 128
//   I8 or U8 [r, c / 2], scales [r, c / 32]: two FP4 (E2M1) in a byte, the lower half first, value x scale of its 32 (MXFP4)
// Scales are F8_E8M0 (2^(byte - 127)), F32 or BF16. Sources: OCP Microscaling Formats, version 1.0; DeepSeek-V3 and V4 releases.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/hf_folder.h"

namespace hyscale {

// Of `shape`. Throws UserError naming the file and the tensor: another shape, a dtype without meaning here, scales that are
// missing or of another size.
std::vector<float> read_as_f32(const HfFolderReader&, const std::string& name, const std::vector<int64_t>& shape);

// The name of a tensor's scales in the folder, or empty.
std::string scale_name(const HfFolderReader&, const std::string& name);

float e8m0_to_float(uint8_t);

}  // namespace hyscale
