// Packed sequences on the host: what the loader makes, and the part of one that a rank works on.
#pragma once
#include <vector>

#include "models/context.h"

namespace hyscale {

// A whole sequence of S tokens.
struct HostSequence {
  std::vector<int32_t> tokens, labels;                 // [S]; label -1: none
  std::vector<int32_t> positions, key_begin, key_end;  // [S]
  std::vector<int32_t> document_starts;                // [D + 1]
};

// Fills positions and bounds from the document starts. Throws InternalError when sizes disagree.
HostSequence make_host_sequence(std::vector<int32_t> tokens, std::vector<int32_t> labels, std::vector<int32_t> document_starts);

// What a model reads of a sequence beyond its tokens.
struct SequenceNeeds {
  int mtp_depths = 0;                       // labels of further tokens
  std::vector<int64_t> compression_ratios;  // compressed entries
  int64_t reach = 0;                        // tokens to the left that a layer reads beside its own
};

// A rank's part of a sequence on the device of the arena.
PackedSequence to_device(const HostSequence&, const ContextLayout&, int rank, const SequenceNeeds&, Arena&, Stream);
// All of it.
PackedSequence to_device(const HostSequence&, const SequenceNeeds&, Arena&, Stream);

int64_t num_labels(const HostSequence&);
// Labels of all MTP depths together: depth d predicts the token d + 1 places beyond the label, inside the document.
int64_t num_mtp_labels(const HostSequence&, int depths);
int64_t num_documents(const HostSequence&);  // that hold a token

}  // namespace hyscale
