// States of the gated delta rule between the segments of a sequence that is spread over ranks. What a segment does to the state is
// affine (kernels/gated_delta/delta_states.h); every rank gathers the maps of all segments and composes those before its own:
//   S <- M S + S_ext in the order of the tokens,   dS <- M^T dS + dS_ext against it
// A map that no state passes through, since a document begins or ends in the segment, is zero.
#pragma once
#include "models/context.h"

namespace hyscale {

enum class CarryDirection : uint8_t { forward, backward };

// maps f32 [N, H, Dk, Dk] and states f32 [N, H, Dk, Dv] (M and S_ext or dS_ext) of the own segments; those of empty segments are not
// read. carried f32 [N, H, Dk, Dv] becomes the states before the own segments, or the gradients of those behind them.
void carry_states(Context&, CarryDirection, const Tensor& maps, const Tensor& states, const Tensor& carried);

}  // namespace hyscale
