#include "comm/ring.h"

#include <array>
#include <vector>

namespace hyscale {

Ring::Ring(Communicator& group, const ContextLayout& layout, Device device, ContextTransport transport)
    : group_(group), layout_(layout), tokens_(layout.shards()), device_(device), transport_(transport), transfer_(device), ready_(device) {
  HYSCALE_CHECK(group.size() == layout.size(), "a group of ", group.size(), " ranks for a layout of ", layout.size());
}

Ring::Timed& Ring::begin_transfer(Stream compute) {
  if (num_timed_ == timed_.size()) timed_.emplace_back(device_);
  Timed& t = timed_[num_timed_++];
  ready_.record(compute);  // what is sent is complete, and whatever read the memory that receives has been enqueued before
  ready_.hold(transfer_.get());
  t.begins.record(transfer_.get());
  return t;
}

void Ring::wait_for_transfer(Timed& t, Stream compute) {
  t.arrived.record(transfer_.get());
  t.arrived.hold(compute);
  t.goes_on.record(compute);
}

Ring::Times Ring::take_times() {
  Times sum;
  for (size_t i = 0; i < num_timed_; ++i) {
    timed_[i].goes_on.synchronize();
    sum.transfer_ms += timed_[i].arrived.milliseconds_since(timed_[i].begins);
    sum.wait_ms += timed_[i].goes_on.milliseconds_since(timed_[i].waits);
  }
  num_timed_ = 0;
  return sum;
}

void Ring::for_each_shard(const RowShards& shards, const Tensor& own, Arena& scratch, Stream compute, const std::function<void(int, const Tensor&)>& visit) {
  const int n = group_.size(), rank = group_.rank();
  HYSCALE_CHECK(own.size(0) == shards.local(rank), to_string(own), " for ", shards.local(rank), " local rows");
  if (n == 1) return visit(0, own);
  ArenaScope scope(scratch);
  if (transport_ == ContextTransport::all_gather) return gather_all(shards, own, scratch, compute, visit);
  const Shape most{shards.most(), own.size(1)};
  const std::array<Tensor, 2> buffers{scratch.allocate(own.dtype(), most), scratch.allocate(own.dtype(), most)};
  Tensor now = own;
  for (int step = 0; step < n; ++step) {
    const bool more = step + 1 < n;
    Tensor next;
    Timed* timed = nullptr;
    if (more) {
      next = buffers[step % 2].slice(0, 0, shards.local(layout_.ring_shard(rank, step + 1)));
      timed = &begin_transfer(compute);
      group_.begin_exchange(now, (rank + 1) % n, next, (rank + n - 1) % n, transfer_.get());
    }
    visit(layout_.ring_shard(rank, step), now);
    if (more) {
      timed->waits.record(compute);
      group_.finish_exchange(transfer_.get());
      wait_for_transfer(*timed, compute);
    }
    now = next;
  }
}

// Shards of equal size, padded at their ends: [size, most rows, C].
void Ring::gather_all(const RowShards& shards, const Tensor& own, Arena& scratch, Stream compute, const std::function<void(int, const Tensor&)>& visit) {
  const int n = group_.size(), rank = group_.rank();
  const Tensor all = scratch.allocate(own.dtype(), {n, shards.most(), own.size(1)});
  copy(all.select(0, rank).slice(0, 0, own.size(0)), own, compute);
  Timed& timed = begin_transfer(compute);
  timed.waits.record(compute);
  group_.all_gather(all.select(0, rank), all, transfer_.get());
  wait_for_transfer(timed, compute);
  for (int step = 0; step < n; ++step) {
    const int shard = layout_.ring_shard(rank, step);
    visit(shard, all.select(0, shard).slice(0, 0, shards.local(shard)));
  }
}

void Ring::reduce_into_owners(const RowShards& shards, const Tensor& all_rows, const Tensor& own, Arena& scratch, Stream compute,
                              const std::function<void(const Tensor&, const Tensor&)>& add) {
  const int n = group_.size(), rank = group_.rank();
  check_tensor(all_rows, "all_rows", DType::f32, {shards.total(), own.size(1)});
  check_tensor(own, "own", DType::f32, {shards.local(rank), all_rows.size(1)});
  ArenaScope scope(scratch);
  if (transport_ == ContextTransport::all_gather) return scatter_sums(shards, all_rows, own, scratch, compute, add);
  const Shape most{shards.most(), own.size(1)};
  const std::array<Tensor, 2> buffers{scratch.allocate(DType::f32, most), scratch.allocate(DType::f32, most)};
  const auto shard_of = [&](int buffer, int shard) { return buffers[buffer].slice(0, 0, shards.local(shard)); };
  // The sum of shard c starts at rank c + 1 and ends, n - 1 steps later, at its owner c.
  int shard = (rank + n - 1) % n;
  Tensor now = shard_of(0, shard);
  take_shard(shards, shard, all_rows, now, compute);
  for (int step = 0; step + 1 < n; ++step) {
    const int coming = (shard + n - 1) % n;
    const Tensor next = shard_of((step + 1) % 2, coming);
    Timed& timed = begin_transfer(compute);
    group_.begin_exchange(now, (rank + 1) % n, next, (rank + n - 1) % n, transfer_.get());
    timed.waits.record(compute);
    group_.finish_exchange(transfer_.get());
    wait_for_transfer(timed, compute);
    int64_t at = 0;
    for (const TokenRange& s : shards.of_rank[static_cast<size_t>(coming)]) {
      if (s.size()) add(next.slice(0, at, at + s.size()), all_rows.slice(0, s.begin, s.end));
      at += s.size();
    }
    shard = coming;
    now = next;
  }
  HYSCALE_CHECK(shard == rank, "the sum of shard ", shard, " ended at rank ", rank);
  if (own.size(0)) add(own, now);
}

void Ring::scatter_sums(const RowShards& shards, const Tensor& all_rows, const Tensor& own, Arena& scratch, Stream compute, const std::function<void(const Tensor&, const Tensor&)>& add) {
  const int n = group_.size();
  const Tensor parts = scratch.allocate_zeroed(DType::f32, {n, shards.most(), own.size(1)}, compute);
  const Tensor sum = scratch.allocate(DType::f32, {shards.most(), own.size(1)});
  for (int r = 0; r < n; ++r) take_shard(shards, r, all_rows, parts.select(0, r).slice(0, 0, shards.local(r)), compute);
  Timed& timed = begin_transfer(compute);
  timed.waits.record(compute);
  group_.reduce_scatter(parts, sum, transfer_.get());
  wait_for_transfer(timed, compute);
  if (own.size(0)) add(own, sum.slice(0, 0, own.size(0)));
}

Ring::HaloTraffic Ring::halo_traffic(int64_t width) const {
  const size_t n = static_cast<size_t>(group_.size());
  HaloTraffic t{std::vector<int64_t>(n, 0), std::vector<int64_t>(n, 0)};
  for (const auto& h : layout_.left_halo(group_.rank(), width)) {
    t.receive_rows[static_cast<size_t>(h.from)] += h.tokens.size();
    t.received += h.tokens.size();
  }
  for (const auto& s : layout_.halo_sends(group_.rank(), width)) {
    t.send_rows[static_cast<size_t>(s.to)] += s.tokens.size();
    t.sent += s.tokens.size();
  }
  return t;
}

namespace {

// Where the rows of each rank begin when they lie one rank after the other.
std::vector<int64_t> starts_of(const std::vector<int64_t>& rows) {
  std::vector<int64_t> starts(rows.size(), 0);
  for (size_t r = 1; r < rows.size(); ++r) starts[r] = starts[r - 1] + rows[r - 1];
  return starts;
}

}  // namespace

Tensor Ring::left_halo(const Tensor& own, int64_t width, Arena& arena, Stream stream) {
  const HaloTraffic traffic = halo_traffic(width);
  const Tensor halo = arena.allocate(own.dtype(), {traffic.received, own.size(1)});
  ArenaScope scope(arena);
  const Tensor out = arena.allocate(own.dtype(), {traffic.sent, own.size(1)}), in = arena.allocate(own.dtype(), {traffic.received, own.size(1)});
  int64_t at = 0;
  for (const auto& s : layout_.halo_sends(group_.rank(), width)) {
    const int64_t local = layout_.to_local(s.tokens.begin);
    copy(out.slice(0, at, at + s.tokens.size()), own.slice(0, local, local + s.tokens.size()), stream);
    at += s.tokens.size();
  }
  group_.all_to_all(out, traffic.send_rows, in, traffic.receive_rows, stream);
  // `in` holds the pieces by sender; within a sender they keep the order of the halo.
  std::vector<int64_t> next = starts_of(traffic.receive_rows);
  at = 0;
  for (const auto& h : layout_.left_halo(group_.rank(), width)) {
    const int64_t size = h.tokens.size();
    int64_t& from = next[static_cast<size_t>(h.from)];
    copy(halo.slice(0, at, at + size), in.slice(0, from, from + size), stream);
    from += size;
    at += size;
  }
  return halo;
}

void Ring::return_halo(const Tensor& halo, int64_t width, const Tensor& own, Arena& arena, Stream stream, const std::function<void(const Tensor&, const Tensor&)>& add) {
  const HaloTraffic traffic = halo_traffic(width);
  HYSCALE_CHECK(halo.size(0) == traffic.received && halo.size(1) == own.size(1), "halo ", to_string(halo), " of ", traffic.received, " rows, own ", to_string(own));
  ArenaScope scope(arena);
  const Tensor out = arena.allocate(halo.dtype(), {traffic.received, halo.size(1)}), in = arena.allocate(halo.dtype(), {traffic.sent, halo.size(1)});
  std::vector<int64_t> next = starts_of(traffic.receive_rows);
  int64_t at = 0;
  for (const auto& h : layout_.left_halo(group_.rank(), width)) {
    const int64_t size = h.tokens.size();
    int64_t& to = next[static_cast<size_t>(h.from)];
    copy(out.slice(0, to, to + size), halo.slice(0, at, at + size), stream);
    to += size;
    at += size;
  }
  group_.all_to_all(out, traffic.receive_rows, in, traffic.send_rows, stream);
  at = 0;
  for (const auto& s : layout_.halo_sends(group_.rank(), width)) {
    const int64_t local = layout_.to_local(s.tokens.begin), size = s.tokens.size();
    add(own.slice(0, local, local + size), in.slice(0, at, at + size));
    at += size;
  }
}

void place_shard(const RowShards& shards, int rank, const Tensor& shard, const Tensor& all_rows, Stream stream) {
  int64_t at = 0;
  for (const TokenRange& s : shards.of_rank[static_cast<size_t>(rank)]) {
    copy(all_rows.slice(0, s.begin, s.end), shard.slice(0, at, at + s.size()), stream);
    at += s.size();
  }
}

void take_shard(const RowShards& shards, int rank, const Tensor& all_rows, const Tensor& shard, Stream stream) {
  int64_t at = 0;
  for (const TokenRange& s : shards.of_rank[static_cast<size_t>(rank)]) {
    copy(shard.slice(0, at, at + s.size()), all_rows.slice(0, s.begin, s.end), stream);
    at += s.size();
  }
}

}  // namespace hyscale
