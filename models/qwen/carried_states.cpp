#include "models/qwen/carried_states.h"

#include <algorithm>

#include "models/layers/linear.h"

namespace hyscale {
namespace {

// A segment that holds tokens: its rank, and its number among that rank's.
struct Place {
  int64_t first_token, rank, number;
};

std::vector<Place> segments_in_order(const ContextLayout& layout) {
  std::vector<Place> places;
  for (int rank = 0; rank < layout.size(); ++rank) {
    int64_t number = 0;
    for (const TokenRange& r : layout.segments(rank)) {
      if (r.size() > 0) places.push_back({r.begin, rank, number});
      ++number;
    }
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.first_token < b.first_token; });
  return places;
}

Tensor gathered(Context& ctx, const Tensor& own) {
  Communicator& group = ctx.ring->group();
  const Tensor all = ctx.scratch->allocate(own.dtype(), {group.size() * own.size(0), own.size(1), own.size(2), own.size(3)});
  group.all_gather(own, all, ctx.stream);
  return all;
}

}  // namespace

void carry_states(Context& ctx, CarryDirection direction, const Tensor& maps, const Tensor& states, const Tensor& carried) {
  const ArenaScope scope(*ctx.scratch);
  const bool backward = direction == CarryDirection::backward;
  const Tensor all_maps = gathered(ctx, maps), all_states = gathered(ctx, states);
  std::vector<Place> places = segments_in_order(ctx.ring->layout());
  if (backward) std::reverse(places.begin(), places.end());
  Tensor state = ctx.scratch->allocate_zeroed(DType::f32, {states.size(1), states.size(2), states.size(3)}, ctx.stream);
  for (const Place& p : places) {
    if (p.rank == ctx.ring->group().rank()) copy(carried.select(0, p.number), state, ctx.stream);
    const int64_t at = p.rank * maps.size(0) + p.number;
    const Tensor behind = all_states.select(0, at);
    scratch_gemm(ctx, all_maps.select(0, at), state, behind, backward, false, 1, 1);
    state = behind;
  }
}

}  // namespace hyscale
