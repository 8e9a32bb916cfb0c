// CUDA forms of the gated delta rule.
#pragma once
#include "kernels/gated_delta/gated_delta.h"

namespace hyscale {

// Any dtype and size.
void gated_delta_plain(const GatedDelta&);
void gated_delta_backward_plain(const GatedDeltaBackward&);
size_t gated_delta_backward_plain_workspace_bytes(const GatedDeltaBackward&);

}  // namespace hyscale
