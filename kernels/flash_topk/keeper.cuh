// The keepers of a FlashTopK block (flash_topk.cu).
#pragma once
#include "kernels/flash_topk/block.cuh"

namespace hyscale::topk {

// Appends what beats the threshold. A group of lanes looks at one query's scores. All that a warp has to look at, it looks at
// in one go: for one query and slot the latencies of a single warp alone would outlast the tensor cores' turn.
template <typename Form>
struct Keeper {
  static constexpr int kQueries = Form::kQueries, kKeepers = Form::kKeepers, kSlotsTogether = Form::kSlotsTogether;
  static constexpr int kAtOnce = Form::kQueriesAtOnce, kLanes = 32 / kAtOnce, kGroups = kQueries / kAtOnce / kKeepers;
  static constexpr int kMine = kSlotsTogether * kSlotKeys / kLanes;  // keys of a lane, for each group of queries
  // Scores of a lane that are appended one by one. Where products leave the time, all that a lane has is appended in one go.
  static constexpr int kFew = Form::kScaled || kQueries == 64 ? 3 : 0;
  static_assert(kQueries % (kAtOnce * kKeepers) == 0 && kAtOnce * kGroups <= 32 && kGroups * kMine <= 32 && kMine % 4 == 0);
  static constexpr uint32_t kAtMost = kSlotsTogether * kSlotKeys;  // candidates of a query that come in one go
  Shared<Form>& s;
  const Problem& p;
  uint32_t room = 0;  // at least so many entries are free in each of this warp's rings

  __device__ __forceinline__ void run() {
    Turn<Form::kSlots> slot;
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
      barrier_wait(&s.task_full[number & 1], number >> 1 & 1);
      const auto& task = s.tasks[number & 1];
      if (task.num_tiles < 0) return;
      // The entries that alternate are free when the list of two tasks ago is settled.
      if (owns_query())
        while (observe(&s.finished[own_query()]) + 1 < number) __nanosleep(100);
      tell_progress(number, false);
      constexpr int kTimes = kKeyTile / kSlotKeys / kSlotsTogether;  // looks at a tile
      const int looks = task.num_tiles * kTimes;
      Tiles tiles(task.num_tiles);
      int first_key = 0;
#pragma unroll 1
      for (int look = 0; look < looks; ++look) {
        first_key = look % kTimes == 0 ? (task.first_tile + tiles.next()) * kKeyTile : first_key + kSlotsTogether * kSlotKeys;
#pragma unroll
        for (int i = 0; i < kSlotsTogether; i += Form::kSlotsAtOnce) barrier_wait(&s.slot_full[slot.at + i], slot.parity);
        append(task, number, slot.at, first_key);
        if (lane_id() < kSlotsTogether && lane_id() % Form::kSlotsAtOnce == 0) barrier_arrive(&s.slot_empty[slot.at + lane_id()]);
        slot.advance(kSlotsTogether);
        if (look % (4 * kTimes) == 0) tell_progress(number, false);
      }
      tell_progress(number, true);
      if (lane_id() == 0) barrier_arrive(&s.task_empty[number & 1]);
    }
  }
  // Query of this lane where lanes stand for the queries of the warp.
  static __device__ __forceinline__ bool owns_query() { return lane_id() < kQueries / kKeepers; }
  static __device__ __forceinline__ int own_query() { return (warp() + lane_id() / kAtOnce * kKeepers) * kAtOnce + lane_id() % kAtOnce; }
  __device__ __forceinline__ void tell_progress(uint32_t number, bool complete) {
    __syncwarp();
    if (owns_query()) publish(&s.progress[number & 1][own_query()], uint64_t{number + 1} << 33 | uint64_t{complete} << 32 | s.tail[own_query()]);
    __syncwarp();
  }
  // Scores that the threshold does not exceed are looked at again; so are NaN and its equals.
  __device__ __forceinline__ void append(const Task<Form>& task, uint32_t number, int slot, int first_key) {
    float mine[kGroups][kMine], least[kGroups];
    uint32_t take = 0;  // bit g * kMine + j
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int q = query_of(g);
      load_scores(mine[g], slot, q);
      least[g] = threshold_score(threshold_of(number, q));
#pragma unroll
      for (int j = 0; j < kMine; ++j)
        if (!(mine[g][j] < least[g])) take |= 1u << (g * kMine + j);
    }
    if (first_key < task.all_begin || first_key + kSlotsTogether * kSlotKeys > task.all_end) take &= visible(task, first_key);
    const int most = static_cast<int>(__reduce_max_sync(~0u, __popc(take)));
    if (most == 0) return;
    make_room(number);
    if (most > kFew) {
      uint32_t above = 0;
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int j = 0; j < kMine; ++j)
          if (mine[g][j] > least[g]) above |= 1u << (g * kMine + j);
      if (__any_sync(~0u, take & ~above)) settle_equals(mine, least, number, first_key, take, above);
      if (!__any_sync(~0u, take & ~above)) return append_many(mine, take, first_key);
    }
    append_each(task.first_query, number, take, slot, first_key);
  }
  // Equals of thresholds, where these speak of earlier keys or of later ones: on a plateau they are many.
  __device__ __forceinline__ void settle_equals(const float (&mine)[kGroups][kMine], const float (&least)[kGroups], uint32_t number, int first_key, uint32_t& take, uint32_t& above) const {
    const int32_t first = static_cast<int32_t>(p.first_key) + first_key;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const uint64_t threshold = threshold_of(number, query_of(g));
      uint32_t equal = 0;
#pragma unroll
      for (int j = 0; j < kMine; ++j)
        if (mine[g][j] == least[g] && threshold_score(threshold) == least[g]) equal |= 1u << (g * kMine + j);
      if (threshold_index(threshold) <= first) take &= ~equal;
      if (threshold_index(threshold) - kSlotsTogether * kSlotKeys >= first) above |= equal;
    }
  }
  // Predicates, since branches of few lanes cost more than what they skip.
  __device__ __forceinline__ void append_many(const float (&mine)[kGroups][kMine], uint32_t take, int first_key) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const uint32_t here = take >> (g * kMine) & ((uint64_t{1} << kMine) - 1);
      uint32_t at = take_places(&s.tail[query_of(g)], here);
      Candidate* ring = ring_of(query_of(g));
      asm("" : "+l"(ring));  // as below
      const int32_t index = static_cast<int32_t>(p.first_key) + first_key + key_of(0);
#pragma unroll
      for (int j = 0; j < kMine; ++j) {
        store_if(here & 1u << j, ring + (at & static_cast<uint32_t>(p.ring - 1)), mine[g][j], index + key_of(j) - key_of(0));
        at += here >> j & 1;
      }
    }
    __syncwarp();
  }
  // Equals of the threshold go by their index; NaN is told and becomes a score that nothing prefers. A query that sees no
  // key is told of none.
  __device__ __forceinline__ void append_each(int64_t first_query, uint32_t number, uint32_t take, int slot, int first_key) {
#pragma unroll 1
    for (; take != 0; take &= take - 1) {
      const uint32_t bit = static_cast<uint32_t>(__ffs(static_cast<int>(take)) - 1), key = static_cast<uint32_t>(key_of(bit % kMine));
      const int q = query_of(kGroups == 1 ? 0 : bit / kMine);
      float score = s.slots[slot + key / kSlotKeys][q][key % kSlotKeys];
      const uint64_t threshold = threshold_of(number, q);
      const int32_t index = static_cast<int32_t>(p.first_key) + first_key + static_cast<int32_t>(key);
      if (score != score && threshold != kClosed) {
        atomicMin(p.nan_query, static_cast<int32_t>(first_query + q));
        score = -INFINITY;
      }
      Candidate* ring = ring_of(q);
      asm("" : "+l"(ring));  // else the sum is taken apart, and each address takes four instructions
      if (score > threshold_score(threshold) || (score == threshold_score(threshold) && index < threshold_index(threshold)))
        store_candidate(ring + (atomicAdd(&s.tail[q], 1u) & static_cast<uint32_t>(p.ring - 1)), {score, index});
    }
    __syncwarp();
  }
  static __device__ __forceinline__ int query_of(int group) { return kAtOnce * (warp() + group * kKeepers) + lane_id() / kLanes; }
  // This lane's keys, in fours of neighbours.
  static __device__ __forceinline__ int key_of(uint32_t j) { return static_cast<int>((threadIdx.x % kLanes + j / 4 * kLanes) * 4 + j % 4); }
  __device__ __forceinline__ Candidate* ring_of(int q) const { return p.lists + (static_cast<int64_t>(blockIdx.x) * kQueries + q + 1) * p.list_entries - p.ring; }
  __device__ __forceinline__ void load_scores(float (&mine)[kMine], int slot, int q) const {
#pragma unroll
    for (int j = 0; j < kMine; j += 4) {
      // A step of 4 kLanes keys divides a slot or is one, so the slot depends on j alone.
      const float4 four = *reinterpret_cast<const float4*>(&s.slots[slot + j * kLanes / kSlotKeys][q][key_of(j) % kSlotKeys]);
      mine[j] = four.x, mine[j + 1] = four.y, mine[j + 2] = four.z, mine[j + 3] = four.w;
    }
  }
  __device__ __forceinline__ uint32_t visible(const Task<Form>& task, int first_key) const {
    uint32_t bits = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int begin = task.begin[query_of(g)] - first_key, end = task.end[query_of(g)] - first_key;
#pragma unroll
      for (int j = 0; j < kMine; ++j)
        if (key_of(j) >= begin && key_of(j) < end) bits |= 1u << (g * kMine + j);
    }
    return bits;
  }
  // A place for every bit.
  static __device__ __forceinline__ uint32_t take_places(uint32_t* tail, uint32_t take) {
    uint32_t first = 0;
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p atom.shared.add.u32 %0, [%1], %3;\n}" : "+r"(first) : "r"(shared_address(tail)), "r"(take), "r"(__popc(take)) : "memory");
    return first;
  }
  static __device__ __forceinline__ void store_if(uint32_t condition, Candidate* to, float score, int32_t index) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.cg.v2.b32 [%1], {%2, %3};\n}" ::"r"(condition), "l"(to), "f"(score), "r"(index) : "memory");
  }
  // Waits until the lists of this warp's queries can take all that comes at once.
  __device__ __forceinline__ void make_room(uint32_t number) {
    if (room < kAtMost) {
      if (room = free_entries(); room < kAtMost) tell_progress(number, false);
      for (; room < kAtMost; room = free_entries()) __nanosleep(100);
    }
    room -= kAtMost;
  }
  // Of the fullest ring. A selector publishes the head after its last look at what lies before it.
  __device__ __forceinline__ uint32_t free_entries() const {
    return __reduce_min_sync(~0u, owns_query() ? static_cast<uint32_t>(p.ring) - (s.tail[own_query()] - *const_cast<const volatile uint32_t*>(&s.head[own_query()])) : ~0u);
  }
  __device__ __forceinline__ uint64_t threshold_of(uint32_t number, int q) const { return *const_cast<const volatile uint64_t*>(&s.threshold[number & 1][q]); }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 - 1; }
};

}  // namespace hyscale::topk
