// Ring: rows that every rank of a context group owns a shard of travel once around, so that each rank meets all of them
// with memory for two shards; and back: rows that every rank has a contribution to are summed into their owners.
// Also the halo: the few rows to the left of a segment. The alternative to travelling is one collective that brings all
// shards at once: fewer and larger messages, nothing to hide them behind.
//
// Rows are in the order of ContextLayout: a shard is its rank's segments, one after the other. Transfers run on a stream
// of their own, one shard ahead of the work.
#pragma once
#include <deque>
#include <functional>

#include "comm/communicator.h"
#include "comm/context_layout.h"
#include "core/arena.h"
#include "core/stream.h"

namespace hyscale {

enum class ContextTransport : uint8_t { ring, all_gather };

class Ring {
 public:
  // The group stays valid as long as the ring and has layout.size() ranks.
  Ring(Communicator& group, const ContextLayout& layout, Device, ContextTransport = ContextTransport::ring);

  // Calls visit(rank, shard) once for each rank's shard, the own one first. own: [local_tokens, C].
  // While visit works on `compute`, the next shard arrives. The shard is valid until the visit after the next.
  void for_each_shard(const Tensor& own, Arena& scratch, Stream compute, const std::function<void(int, const Tensor&)>& visit);

  // own [local_tokens, C] += sum over ranks of their all_rows [sequence_tokens, C] at the own tokens. f32.
  // add(into, from) enqueues into += from on `compute`. The order of the ring's sum is fixed: from the right neighbour around.
  void reduce_into_owners(const Tensor& all_rows, const Tensor& own, Arena& scratch, Stream compute,
                          const std::function<void(const Tensor&, const Tensor&)>& add);

  // The rows of layout.left_halo(rank, width), one after the other, from arena. own: [local_tokens, C].
  Tensor left_halo(const Tensor& own, int64_t width, Arena& arena, Stream);

  // What transfers took and for how much of it the work stood still, since the last call. Waits for the device.
  struct Times {
    double transfer_ms = 0, wait_ms = 0;
  };
  Times take_times();

  Communicator& group() { return group_; }
  const ContextLayout& layout() const { return layout_; }

 private:
  struct Timed {
    explicit Timed(Device d) : begins(d), arrived(d), waits(d), goes_on(d) {}
    Event begins, arrived, waits, goes_on;
  };
  Timed& begin_transfer(Stream compute);
  void wait_for_transfer(Timed&, Stream compute);
  void gather_all(const Tensor& own, Arena& scratch, Stream compute, const std::function<void(int, const Tensor&)>& visit);
  void scatter_sums(const Tensor& all_rows, const Tensor& own, Arena& scratch, Stream compute, const std::function<void(const Tensor&, const Tensor&)>& add);

  Communicator& group_;
  ContextLayout layout_;
  Device device_;
  ContextTransport transport_;
  OwnedStream transfer_;
  Event ready_;
  std::deque<Timed> timed_;  // one per transfer of the step, reused
  size_t num_timed_ = 0;
};

// Copies a rank's shard to its places in all rows [sequence_tokens, C], and back.
void place_shard(const ContextLayout&, int rank, const Tensor& shard, const Tensor& all_rows, Stream);
void take_shard(const ContextLayout&, int rank, const Tensor& all_rows, const Tensor& shard, Stream);

}  // namespace hyscale
