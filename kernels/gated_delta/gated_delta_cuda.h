// CUDA forms of the gated delta rule.
#pragma once
#include "kernels/gated_delta/gated_delta.h"

namespace hyscale {

// Any dtype and size.
void gated_delta_plain(const GatedDelta&);
void gated_delta_backward_plain(const GatedDeltaBackward&);
size_t gated_delta_backward_plain_workspace_bytes(const GatedDeltaBackward&);

// bf16, Dk = Dv = 128, chunk 64, rows at multiples of 16 bytes. The workspace holds the state of every chunk and value head, 32 KiB, and
// as much again of what is made of the chunk; backward twice that.
bool gated_delta_chunks_fit(const GatedDelta&);
bool gated_delta_chunks_fit(const GatedDeltaBackward&);
void gated_delta_chunks(const GatedDelta&);
void gated_delta_chunks(const GatedDeltaBackward&);
size_t gated_delta_chunks_workspace_bytes(const GatedDelta&);
size_t gated_delta_chunks_workspace_bytes(const GatedDeltaBackward&);

}  // namespace hyscale
