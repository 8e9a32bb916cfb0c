// CUDA forms of the gated delta rule. A run is that of delta_map: the one document of its tokens, without an output. Its map (or absent)
// and states are overwritten; of a run's backward v is not read, and what has its shape stands in.
#pragma once
#include "kernels/gated_delta/delta_states.h"

namespace hyscale {

// Any dtype and size.
void gated_delta_plain(const GatedDelta&, const CarriedStates& before = {});
void gated_delta_backward_plain(const GatedDeltaBackward&, const CarriedStates& before = {}, const CarriedStates& dbehind = {});
size_t gated_delta_backward_plain_workspace_bytes(const GatedDeltaBackward&);
void delta_map_plain(const GatedDelta& run, const Tensor& map, const Tensor& state);
void delta_map_backward_plain(const GatedDeltaBackward& run, const Tensor& dstate);

// bf16, Dk = Dv = 128, chunk 64, rows at multiples of 16 bytes. The workspace holds the state of every chunk and value head, 32 KiB, and
// as much again of what is made of the chunk; backward twice that.
bool gated_delta_chunks_fit(const GatedDelta&);
bool gated_delta_chunks_fit(const GatedDeltaBackward&);
void gated_delta_chunks(const GatedDelta&, const CarriedStates& before = {});
void gated_delta_chunks(const GatedDeltaBackward&, const CarriedStates& before = {}, const CarriedStates& dbehind = {});
size_t gated_delta_chunks_workspace_bytes(const GatedDelta&);
size_t gated_delta_chunks_workspace_bytes(const GatedDeltaBackward&);
// The workspaces are those of the forms above.
void delta_map_chunks(const GatedDelta& run, const Tensor& map, const Tensor& state);
void delta_map_backward_chunks(const GatedDeltaBackward& run, const Tensor& dstate);

void delta_map_cuda(const DeltaMap&);
size_t delta_map_cuda_workspace_bytes(const DeltaMap&);
void delta_map_backward_cuda(const DeltaMapBackward&);
size_t delta_map_backward_cuda_workspace_bytes(const DeltaMapBackward&);

}  // namespace hyscale
