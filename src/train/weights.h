// Model weights from and to Hugging Face folders.
#pragma once
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/write_queue.h"
#include "comm/groups.h"
#include "models/model.h"

namespace hyscale {

// Quantised weights are dequantised (checkpoint/dequantize.h), names may be those of the family's own release.
// Fills every parameter, as far as this rank holds it. Throws UserError naming folder and tensor when one is missing or has another shape, and when the
// folder holds tensors that the model does not know. `skipped_prefix`: names that may be left unread (the MTP layer of a
// model that does not train it); returns how many were.
int64_t load_weights(ParameterStore&, const HfFolderReader&, const std::string& skipped_prefix = "");

// Collective over the ranks of the groups: each expert rank writes its experts, the first all the rest, through `queue`; the
// values are copied before this returns. When the queues of all ranks are done, finish_hf_folder completes the folder.
// dtype: "float32" or "bfloat16" for weights; buffers (router bias) are always F32. digests (or null): of "model/FILE".
void save_weights(Model&, ProcessGroups&, const std::string& folder, const std::string& dtype, WriteQueue& queue, std::shared_ptr<FileDigests> digests);

// Writes the tensors of one folder as save_weights would after load_weights, tensor by tensor: in memory is the largest one.
// The model's parameters need no memory. Throws as load_weights does.
void convert_weights(Model&, const HfFolderReader& from, const std::string& folder, const std::string& dtype);
nlohmann::json saved_hf_config(const Model&, const std::string& dtype);

// A contiguous tensor as f32 on the host.
std::vector<float> values_on_host(const Tensor&);

}  // namespace hyscale
