// Rows of the own tokens and of those to the left of each segment (TokenReach): what windows and groups that straddle an edge
// are made of. Layers compute on all of these rows; gradients of a neighbour's tokens go back to it.
#pragma once
#include "models/context.h"

namespace hyscale {

// rows [T, C] of the own tokens -> [X, C] in the arena; rows itself where the reach is the own tokens.
Tensor reach_rows(Context&, const Tensor& rows, Arena&);
inline Tensor reach_rows(Context& ctx, const Tensor& rows) { return reach_rows(ctx, rows, *ctx.saved); }

// Gradients of the reach [X, C], added to those of the own tokens, here and at the neighbours'. Where the reach is the own
// tokens, dreach is drows' own memory.
void fold_reach(Context&, const Tensor& dreach, const Tensor& drows);
// Between rows of the reach [X, ..] and those of the own tokens [T, ..], where these are not the same. Rows of halos stay as they are.
void take_own_rows(Context&, const Tensor& reach, const Tensor& rows);
void place_own_rows(Context&, const Tensor& rows, const Tensor& reach);
inline bool reaches_over(const Context& ctx) { return !ctx.sequence->reach.pieces.empty(); }

}  // namespace hyscale
