// The gated delta rule (kernels/gated_delta/gated_delta.h) over a document that is cut into runs of tokens, as ranks hold them: what a
// run does to the state it is handed. Runs are worked on side by side, and states travel between them:
//   S_out = M S_in + S_ext,   dS_in = M^T dS_out + dS_ext,   M = product over chunks, later ones on the left, of g_last I - K^T diag(r) W
// S_ext comes out of a run that begins without a state; dS_ext comes back from a run whose last state nobody reads. With unit keys,
// beta < 1 and decay <= 1 the spectral norm of M is at most 1.
// CUDA: the carried states, the maps and the states that they give are f32; products read states as gated_delta's do. Source: Gated DeltaNet (arXiv 2412.06464), section 3.3, whose chunk is affine in the state.
#pragma once
#include "kernels/gated_delta/gated_delta.h"

namespace hyscale {

// Of the tokens of one run.
struct DeltaMap {
  Tensor k, v, log_decay, beta;  // as in GatedDelta
  int64_t chunk = 64;
  Tensor map;    // f32 [Hv, Dk, Dk]: M, overwritten; or absent
  Tensor state;  // f32 [Hv, Dk, Dv]: S_ext, overwritten
  Tensor workspace;
  Stream stream;
};
void delta_map(const DeltaMap&);
size_t delta_map_workspace_bytes(const DeltaMap&);

struct DeltaMapBackward {
  Tensor q, k, log_decay, beta;
  float scale = 1;
  int64_t chunk = 64;
  Tensor dout;    // [T, Hv, Dv]
  Tensor dstate;  // f32 [Hv, Dk, Dv]: dS_ext, overwritten
  Tensor workspace;
  Stream stream;
};
void delta_map_backward(const DeltaMapBackward&);
size_t delta_map_backward_workspace_bytes(const DeltaMapBackward&);

// States, or gradients of states, at one end of the documents of document_starts.
struct CarriedStates {
  Tensor states;       // f32 [N, Hv, Dk, Dv]
  Tensor of_document;  // i32 [P]: which of them is a document's; -1: none, zeros
};
// gated_delta and gated_delta_backward where documents begin with states `before`, and gradients `dbehind` come back to their last
// states. The workspace is that of the plain forms.
void gated_delta_carried(const GatedDelta&, const CarriedStates& before);
void gated_delta_carried_backward(const GatedDeltaBackward&, const CarriedStates& before, const CarriedStates& dbehind);

}  // namespace hyscale
