// CPU form of the gated delta rule.
#pragma once
#include "kernels/gated_delta/delta_states.h"

namespace hyscale {

void gated_delta_ref(const GatedDelta&, const CarriedStates& before = {});
size_t gated_delta_ref_workspace_bytes(const GatedDelta&);
void gated_delta_backward_ref(const GatedDeltaBackward&, const CarriedStates& before = {}, const CarriedStates& dbehind = {});
size_t gated_delta_backward_ref_workspace_bytes(const GatedDeltaBackward&);
void delta_map_ref(const DeltaMap&);
size_t delta_map_ref_workspace_bytes(const DeltaMap&);
void delta_map_backward_ref(const DeltaMapBackward&);
size_t delta_map_backward_ref_workspace_bytes(const DeltaMapBackward&);

}  // namespace hyscale
