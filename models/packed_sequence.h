// Packed sequences on the host: what the loader makes and a step uploads.
#pragma once
#include <vector>

#include "models/context.h"

namespace hyscale {

struct HostSequence {
  std::vector<int32_t> tokens, labels;                 // [T]; label -1: none
  std::vector<int32_t> positions, key_begin, key_end;  // [T]
  std::vector<int32_t> document_starts;                // [D + 1]
};

// Fills positions and bounds from the document starts. Throws InternalError when sizes disagree.
HostSequence make_host_sequence(std::vector<int32_t> tokens, std::vector<int32_t> labels, std::vector<int32_t> document_starts);

PackedSequence to_device(const HostSequence&, Arena&, Stream);

int64_t num_labels(const HostSequence&);
// Labels of all MTP depths together: depth d predicts the token d + 1 places beyond the label, inside the document.
int64_t num_mtp_labels(const HostSequence&, int depths);
int64_t num_documents(const HostSequence&);  // that hold a token

}  // namespace hyscale
