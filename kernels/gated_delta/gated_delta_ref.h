// CPU form of the gated delta rule.
#pragma once
#include "kernels/gated_delta/gated_delta.h"

namespace hyscale {

void gated_delta_ref(const GatedDelta&);
size_t gated_delta_ref_workspace_bytes(const GatedDelta&);
void gated_delta_backward_ref(const GatedDeltaBackward&);
size_t gated_delta_backward_ref_workspace_bytes(const GatedDeltaBackward&);

}  // namespace hyscale
