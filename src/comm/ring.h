// Ring: rows that every rank of a context group owns a shard of travel once around, so that each rank meets all of them
// with memory for two shards; and back: rows that every rank has a contribution to are summed into their owners.
// Also the halo: the few rows to the left of a segment.
//
// Rows are in the order of ContextLayout: a shard is its rank's segments, one after the other. Transfers run on a stream
// of their own, one shard ahead of the work.
#pragma once
#include <functional>

#include "comm/communicator.h"
#include "comm/context_layout.h"
#include "core/arena.h"
#include "core/stream.h"

namespace hyscale {

class Ring {
 public:
  // Both stay valid as long as the ring; the group has layout.size() ranks.
  Ring(Communicator& group, const ContextLayout& layout, Device);

  // Calls visit(rank, shard) once for each rank's shard, the own one first. own: [local_tokens, C].
  // While visit works on `compute`, the next shard arrives. The shard is valid until the visit after the next.
  void for_each_shard(const Tensor& own, Arena& scratch, Stream compute, const std::function<void(int, const Tensor&)>& visit);

  // own [local_tokens, C] += sum over ranks of their all_rows [sequence_tokens, C] at the own tokens. f32.
  // add(into, from) enqueues into += from on `compute`. The order of the sum is fixed: from the right neighbour around.
  void reduce_into_owners(const Tensor& all_rows, const Tensor& own, Arena& scratch, Stream compute,
                          const std::function<void(const Tensor&, const Tensor&)>& add);

  // The rows of layout.left_halo(rank, width), one after the other, from arena. own: [local_tokens, C].
  Tensor left_halo(const Tensor& own, int64_t width, Arena& arena, Stream);

  // Milliseconds for which compute waited for transfers since the last call, where timing is on (see set_timed).
  void set_timed(bool timed) { timed_ = timed; }
  double take_wait_milliseconds();

  Communicator& group() { return group_; }
  const ContextLayout& layout() const { return layout_; }

 private:
  void wait_for_transfer(Stream compute);

  Communicator& group_;
  const ContextLayout& layout_;
  Device device_;
  OwnedStream transfer_;
  Event ready_, arrived_, waits_, goes_on_;
  bool timed_ = false;
  double waited_ms_ = 0;
};

// Copies a rank's shard to its places in all rows [sequence_tokens, C], and back.
void place_shard(const ContextLayout&, int rank, const Tensor& shard, const Tensor& all_rows, Stream);
void take_shard(const ContextLayout&, int rank, const Tensor& all_rows, const Tensor& shard, Stream);

}  // namespace hyscale
