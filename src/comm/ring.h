// Ring: rows that every rank of a context group owns a shard of travel once around, so that each rank meets all of them
// with memory for two shards; and back: rows that every rank has a contribution to are summed into their owners.
// Also the halo: the few rows to the left of a segment. The alternative to travelling is one collective that brings all
// shards at once: fewer and larger messages, nothing to hide them behind.
//
// Rows are in the order of a RowShards, the tokens' own where none is given: a shard is its rank's runs, one after the other. Transfers run on a stream
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

  // Calls visit(rank, shard) once for each rank's shard, the own one first. own: [local rows, C].
  // While visit works on `compute`, the next shard arrives. The shard is valid until the visit after the next.
  void for_each_shard(const RowShards&, const Tensor& own, Arena& scratch, Stream compute, const std::function<void(int, const Tensor&)>& visit);
  void for_each_shard(const Tensor& own, Arena& scratch, Stream compute, const std::function<void(int, const Tensor&)>& visit) {
    for_each_shard(tokens_, own, scratch, compute, visit);
  }

  // own [local rows, C] += sum over ranks of their all_rows [all rows, C] at the own rows. f32.
  // add(into, from) enqueues into += from on `compute`. The order of the ring's sum is fixed: from the right neighbour around.
  void reduce_into_owners(const RowShards&, const Tensor& all_rows, const Tensor& own, Arena& scratch, Stream compute,
                          const std::function<void(const Tensor&, const Tensor&)>& add);
  void reduce_into_owners(const Tensor& all_rows, const Tensor& own, Arena& scratch, Stream compute, const std::function<void(const Tensor&, const Tensor&)>& add) {
    reduce_into_owners(tokens_, all_rows, own, scratch, compute, add);
  }

  // The rows of layout.left_halo(rank, width), one after the other, from arena. own: [local_tokens, C].
  Tensor left_halo(const Tensor& own, int64_t width, Arena& arena, Stream);
  // The way back: contributions to the rows of the halo go to their owners, where add(into, from) takes them in, rows of own
  // and what came for them. A row may be in the halos of several segments; senders are taken in ascending order.
  void return_halo(const Tensor& halo, int64_t width, const Tensor& own, Arena& arena, Stream, const std::function<void(const Tensor&, const Tensor&)>& add);

  // What transfers took and for how much of it the work stood still, since the last call. Waits for the device.
  struct Times {
    double transfer_ms = 0, wait_ms = 0;
  };
  Times take_times();

  Communicator& group() { return group_; }
  const ContextLayout& layout() const { return layout_; }
  const RowShards& tokens() const { return tokens_; }

 private:
  struct Timed {
    explicit Timed(Device d) : begins(d), arrived(d), waits(d), goes_on(d) {}
    Event begins, arrived, waits, goes_on;
  };
  Timed& begin_transfer(Stream compute);
  void wait_for_transfer(Timed&, Stream compute);
  void gather_all(const RowShards&, const Tensor& own, Arena& scratch, Stream compute, const std::function<void(int, const Tensor&)>& visit);
  struct HaloTraffic {
    std::vector<int64_t> send_rows, receive_rows;  // of each rank
    int64_t sent = 0, received = 0;
  };
  HaloTraffic halo_traffic(int64_t width) const;
  void scatter_sums(const RowShards&, const Tensor& all_rows, const Tensor& own, Arena& scratch, Stream compute, const std::function<void(const Tensor&, const Tensor&)>& add);

  Communicator& group_;
  ContextLayout layout_;
  RowShards tokens_;
  Device device_;
  ContextTransport transport_;
  OwnedStream transfer_;
  Event ready_;
  std::deque<Timed> timed_;  // one per transfer of the step, reused
  size_t num_timed_ = 0;
};

// Copies a rank's shard to its places in all rows, and back.
void place_shard(const RowShards&, int rank, const Tensor& shard, const Tensor& all_rows, Stream);
void take_shard(const RowShards&, int rank, const Tensor& all_rows, const Tensor& shard, Stream);

}  // namespace hyscale
