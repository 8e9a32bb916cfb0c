#include "models/layers/token_reach.h"

#include "kernels/elementwise/elementwise.h"

namespace hyscale {
namespace {

// Calls function(first row of the halo in the reach, first row of the halo among halos, first own token, piece).
template <typename Function>
void for_each_piece(const TokenReach& reach, Function function) {
  int64_t row = 0, halo = 0, token = 0;
  for (const TokenReach::Piece& p : reach.pieces) {
    function(row, halo, token, p);
    row += p.halo_rows + p.own_rows;
    halo += p.halo_rows;
    token += p.own_rows;
  }
}

}  // namespace

Tensor reach_rows(Context& ctx, const Tensor& rows, Arena& arena) {
  if (!reaches_over(ctx)) return rows;
  const TokenReach& reach = ctx.sequence->reach;
  const Tensor all = arena.allocate(rows.dtype(), {reach.positions.size(0), rows.size(1)});
  const ArenaScope scope(*ctx.scratch);
  const Tensor halo = ctx.ring->left_halo(rows, reach.width, *ctx.scratch, ctx.stream);
  for_each_piece(reach, [&](int64_t row, int64_t from, int64_t token, const TokenReach::Piece& p) {
    copy(all.slice(0, row, row + p.halo_rows), halo.slice(0, from, from + p.halo_rows), ctx.stream);
    copy(all.slice(0, row + p.halo_rows, row + p.halo_rows + p.own_rows), rows.slice(0, token, token + p.own_rows), ctx.stream);
  });
  return all;
}

void take_own_rows(Context& ctx, const Tensor& reach, const Tensor& rows) {
  for_each_piece(ctx.sequence->reach, [&](int64_t row, int64_t, int64_t token, const TokenReach::Piece& p) {
    copy(rows.slice(0, token, token + p.own_rows), reach.slice(0, row + p.halo_rows, row + p.halo_rows + p.own_rows), ctx.stream);
  });
}

void place_own_rows(Context& ctx, const Tensor& rows, const Tensor& reach) {
  for_each_piece(ctx.sequence->reach, [&](int64_t row, int64_t, int64_t token, const TokenReach::Piece& p) {
    copy(reach.slice(0, row + p.halo_rows, row + p.halo_rows + p.own_rows), rows.slice(0, token, token + p.own_rows), ctx.stream);
  });
}

void fold_reach(Context& ctx, const Tensor& dreach, const Tensor& drows) {
  if (!reaches_over(ctx)) return;
  const TokenReach& reach = ctx.sequence->reach;
  const ArenaScope scope(*ctx.scratch);
  const Tensor halo = ctx.scratch->allocate(dreach.dtype(), {dreach.size(0) - drows.size(0), dreach.size(1)});
  const auto add_to = [&](const Tensor& into, const Tensor& from) { add(into, into, from, ctx.stream); };
  for_each_piece(reach, [&](int64_t row, int64_t to, int64_t token, const TokenReach::Piece& p) {
    copy(halo.slice(0, to, to + p.halo_rows), dreach.slice(0, row, row + p.halo_rows), ctx.stream);
    if (p.own_rows > 0) add_to(drows.slice(0, token, token + p.own_rows), dreach.slice(0, row + p.halo_rows, row + p.halo_rows + p.own_rows));
  });
  ctx.ring->return_halo(halo, reach.width, drows, *ctx.scratch, ctx.stream, add_to);
}

}  // namespace hyscale
