// FlashTopK on Hopper. Keys are the rows and 256 (query, head) pairs the columns of a matrix product. Four kinds of warps share
// a persistent block, each a loop over the block's tasks (a task is the queries of 256 pairs):
//
//   loader    1 warp         fetches tasks, feeds queries and key tiles through TMA
//   scorers   2 warpgroups   take turns on the tensor cores, one multiplying while the other adds up heads; scores of 64
//                            keys go to a slot in shared memory
//   keepers   3 warps        append what beats a query's threshold to its list
//   selectors 4 warps        cut lists to their k best (select.cuh) and raise thresholds, while scoring goes on
//
// A list's first k entries lie in the query's row of the state, the rest in a ring in global memory (it stays in L2). A
// stale threshold only lets too much in, so keepers wait for selectors just when a ring is full, and one task's last
// selection runs under the next task's scoring. Lists have one writer each: appending needs no atomics.
//
// Columns are ordered so that all heads of a query lie in one thread: column 8 j + 2 c + e of lane c in a quad is head
// 2 (j % (H/2)) + e of query 4 (j / (H/2)) + c. A score is (sum of even heads) + (sum of odd heads), each in order, so its
// bits depend on the rows of q, w and keys alone.
#include <cub/block/block_radix_sort.cuh>
#include <cuda.h>

#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"
#include "kernels/common/op.h"
#include "kernels/flash_topk/flash_topk_cuda.h"
#include "kernels/flash_topk/select.cuh"

namespace hyscale {

void flash_topk_update_plain_cuda(FlashTopKState&, const FlashTopKUpdate&, void* lists);

namespace {

using namespace hopper;
using topk::Candidate;
using topk::kColumns;
using topk::kKeyTile;

constexpr int kThreads = 512;  // warps 0: loader, 1-3: keepers, 4-7: selectors, 8-15: scorers
constexpr int kKeepers = 3, kSelectors = 4;
constexpr int kSlotKeys = kKeyTile / 2, kSlotStride = kSlotKeys + 8;  // the pad spreads a quad's four queries over the banks
constexpr uint64_t kNoThreshold = uint64_t{INT32_MAX} << 32 | 0xff800000u;

template <int kHeads, int kDims>
struct Task {
  static constexpr int kQueries = kColumns / kHeads;
  int64_t first_query;
  int first_tile, num_tiles;           // no more tasks: num_tiles < 0
  int all_begin, all_end;              // keys that every query sees
  int begin[kQueries], end[kQueries];  // visible keys, relative to the first of this update
  int first_counts[kQueries];          // entries from earlier updates
  alignas(16) float weights[kHeads >= 8 ? kQueries : 1][kHeads + 4];
};

template <int kHeads, int kDims>
struct __align__(1024) Shared {
  static constexpr int kQueries = kColumns / kHeads;
  static constexpr int kStages = kHeads == 4 && kDims == 128 ? 3 : 4, kSlots = kHeads == 4 ? 3 : 6;
  bf16 q[kDims / 64][kColumns * 64];
  bf16 keys[kStages][kDims / 64][kKeyTile * 64];
  float slots[kSlots][kQueries][kSlotStride];  // scores of 64 keys
  Task<kHeads, kDims> tasks[2];
  topk::Scratch scratch[kSelectors];
  // Lists. Tasks alternate between two entries where a keeper may be a task ahead of a selector.
  uint64_t threshold[2][kQueries];  // of a score (low half) and, among equals, an index (high half); selectors write
  uint64_t progress[2][kQueries];   // task number + 1, whether the list is complete, its entries; keepers write
  int appended[kQueries];           // keepers' own
  uint32_t ring_start[kQueries];    // ring entries of all earlier tasks; keepers' own
  uint32_t ring_head[kQueries];     // ring entries consumed so far; selectors write
  uint32_t finished[kQueries];       // tasks whose list is settled; selectors write
  uint64_t full[kStages], empty[kStages], q_full, q_empty, slot_full[kSlots], slot_empty[kSlots], task_full[2], task_empty[2];
};

struct Problem {
  const float* weights;  // [T, H] or null
  const int32_t *begin, *end;
  int64_t queries, num_keys, first_key;
  int k, ring;       // entries of a ring: a power of two
  int select_at;     // entries beyond k that make a selection worthwhile
  float* state_scores;
  int32_t *state_indices, *state_counts, *nan_query;
  float* rings;  // [blocks][queries of a block][scores, indices][ring]
  int32_t* next_task;
};

__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void load_box(void* to, const CUtensorMap* map, uint64_t* barrier, int column, int64_t row) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)), "l"(map),
               "r"(shared_address(barrier)), "r"(column), "r"(static_cast<int>(row))
               : "memory");
}
// All heads of four queries, in the order of columns.
__device__ __forceinline__ void load_heads(void* to, const CUtensorMap* map, uint64_t* barrier, int column, int64_t query) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %5, %4, %5}], [%2];" ::"r"(shared_address(to)), "l"(map),
               "r"(shared_address(barrier)), "r"(column), "r"(static_cast<int>(query)), "r"(0)
               : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// Words of shared memory by which warps tell each other how far they are; what was written before is visible with them.
__device__ __forceinline__ void publish(uint64_t* to, uint64_t x) { asm volatile("st.release.cta.shared.u64 [%0], %1;" ::"r"(shared_address(to)), "l"(x) : "memory"); }
__device__ __forceinline__ void publish(uint32_t* to, uint32_t x) { asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(to)), "r"(x) : "memory"); }
__device__ __forceinline__ uint64_t observe(const uint64_t* from) {
  uint64_t x;
  asm volatile("ld.acquire.cta.shared.u64 %0, [%1];" : "=l"(x) : "r"(shared_address(from)) : "memory");
  return x;
}
__device__ __forceinline__ uint32_t observe(const uint32_t* from) {
  uint32_t x;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(x) : "r"(shared_address(from)) : "memory");
  return x;
}
__device__ __forceinline__ uint64_t threshold_of(float score, int32_t index) { return static_cast<uint64_t>(static_cast<uint32_t>(index)) << 32 | __float_as_uint(score); }
// max(x, 0) that keeps NaN.
__device__ __forceinline__ float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ int lane_id() { return threadIdx.x % 32; }

// A place in a ring of buffers and the parity of its present use.
template <int kCount>
struct Turn {
  int at = 0;
  int parity = 0;
  __device__ __forceinline__ void advance(int by) {
    at += by;
    if (at >= kCount) at -= kCount, parity ^= 1;
  }
};

// Hands the tasks out, longest first, and keeps the stages filled.
template <int kHeads, int kDims, bool kWeighted>
struct Loader {
  using SharedMemory = Shared<kHeads, kDims>;
  static constexpr int kQueries = kColumns / kHeads;
  SharedMemory& s;
  const Problem& p;
  const CUtensorMap *q_map, *key_map;

  __device__ __forceinline__ void run() {
    Turn<SharedMemory::kStages> stage;
    const int64_t num_tasks = (p.queries + kQueries - 1) / kQueries;
    for (uint32_t number = 0;; ++number) {
      auto& task = s.tasks[number & 1];
      barrier_wait(&s.task_empty[number & 1], ~(number >> 1) & 1);
      do {
        int64_t next = 0;
        if (lane_id() == 0) next = atomicAdd(p.next_task, 1);
        next = __shfl_sync(~0u, next, 0);
        if (next >= num_tasks) {
          if (lane_id() == 0) task.num_tiles = -1, barrier_arrive(&s.task_full[number & 1]);
          return;
        }
        describe(task, (num_tasks - 1 - next) * kQueries);  // late queries see most keys: the longest tasks first
      } while (task.num_tiles == 0);                        // the state stays as it is
      if (lane_id() == 0) {
        barrier_arrive(&s.task_full[number & 1]);
        load(task, number, stage);
      }
      __syncwarp();
    }
  }
  __device__ __forceinline__ void describe(Task<kHeads, kDims>& task, int64_t first_query) {
    int low = INT32_MAX, high = 0, all_begin = 0, all_end = INT32_MAX;
    for (int q = lane_id(); q < kQueries; q += 32) {
      const int64_t t = first_query + q;
      const bool exists = t < p.queries;
      int begin = exists ? static_cast<int>(max(p.begin[t] - p.first_key, int64_t{0})) : 0, end = exists ? static_cast<int>(min(p.end[t] - p.first_key, p.num_keys)) : 0;
      if (begin >= end) begin = end = 0;
      task.begin[q] = begin;
      task.end[q] = end;
      task.first_counts[q] = exists ? p.state_counts[t] : 0;
      // A query without keys: no tile is free of checks.
      if (begin < end) low = min(low, begin), high = max(high, end);
      all_begin = max(all_begin, begin);
      all_end = min(all_end, end);
    }
    if constexpr (kWeighted)
#pragma unroll 1
      for (int i = lane_id(); i < kColumns; i += 32) task.weights[i / kHeads][i % kHeads] = first_query + i / kHeads < p.queries ? p.weights[first_query * kHeads + i] : 0;
    low = __reduce_min_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    task.first_query = first_query;
    task.first_tile = high > 0 ? low / kKeyTile : 0;
    task.num_tiles = (high + kKeyTile - 1) / kKeyTile - task.first_tile;
    task.all_begin = __reduce_max_sync(~0u, all_begin);
    task.all_end = __reduce_min_sync(~0u, all_end);
    __syncwarp();
  }
  // The queries' place is free only when the last task's products are done; until then the first keys are under way.
  __device__ __forceinline__ void load(const Task<kHeads, kDims>& task, uint32_t number, Turn<SharedMemory::kStages>& stage) {
    const int num_tiles = task.num_tiles, queries_at = min(num_tiles, SharedMemory::kStages - 1);
#pragma unroll 1
    for (int i = 0;; ++i) {
      if (i == queries_at) load_queries(task.first_query, number);
      if (i == num_tiles) break;
      barrier_wait(&s.empty[stage.at], stage.parity ^ 1);
      barrier_expect(&s.full[stage.at], kKeyTile * kDims * 2);
#pragma unroll
      for (int half = 0; half < kDims / 64; ++half) load_box(s.keys[stage.at][half], key_map, &s.full[stage.at], half * 64, static_cast<int64_t>(task.first_tile + i) * kKeyTile);
      stage.advance(1);
    }
  }
  __device__ __forceinline__ void load_queries(int64_t first_query, uint32_t number) {
    barrier_wait(&s.q_empty, ~number & 1);
    barrier_expect(&s.q_full, kColumns * kDims * 2);
#pragma unroll 1
    for (int q = 0; q < kQueries; q += 4)
#pragma unroll
      for (int half = 0; half < kDims / 64; ++half) load_heads(s.q[half] + q * kHeads * 64, q_map, &s.q_full, half * 64, first_query + q);
  }
};

template <int kHeads, int kDims, bool kWeighted>
struct Scorer {
  using SharedMemory = Shared<kHeads, kDims>;
  static constexpr int kQueries = kColumns / kHeads, kPerRow = kQueries / 4;  // queries of a thread, for each of its two rows
  SharedMemory& s;

  __device__ __forceinline__ void run() {
    Turn<SharedMemory::kStages> stage;
    Turn<SharedMemory::kSlots> slot;
    slot.at = group();
    if (group() == 1) named_arrive(1, 256);
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
      barrier_wait(&s.task_full[number & 1], number >> 1 & 1);
      const auto& task = s.tasks[number & 1];
      const int num_tiles = task.num_tiles;
      if (num_tiles < 0) break;
      barrier_wait(&s.q_full, number & 1);
#pragma unroll 1
      for (int i = 0; i < num_tiles; ++i) {
        float d[2][64];
        multiply(d, stage, i == num_tiles - 1);
        add_heads(d, task, slot);
        stage.advance(1);
        slot.advance(2);
      }
      if (lane_id() == 0) barrier_arrive(&s.task_empty[number & 1]);
    }
    if (group() == 0) named_sync(1, 256);
  }
  __device__ __forceinline__ void multiply(float (&d)[2][64], const Turn<SharedMemory::kStages>& stage, bool last) {
    barrier_wait(&s.full[stage.at], stage.parity);
    named_sync(1 + group(), 256);  // this group's turn
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kDims / 16; ++step) {
      const uint64_t a = row_descriptor(shared_address(s.keys[stage.at][step / 4]) + group() * kTileBytes) + step % 4 * 2;
      const uint64_t b = row_descriptor(shared_address(s.q[step / 4])) + step % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (step == 0)
          wgmma_n128_first(d[half], a, b + half * 1024);
        else
          wgmma_n128<0, 0>(d[half], a, b + half * 1024, 1);
    }
    wgmma_commit();
    named_arrive(1 + (1 - group()), 256);
    wgmma_wait<0>();
    pin(d[0]);
    pin(d[1]);
    if (threadIdx.x % 128 == 0) {
      barrier_arrive(&s.empty[stage.at]);
      if (last) barrier_arrive(&s.q_empty);
    }
  }
  __device__ __forceinline__ void add_heads(const float (&pieces)[2][64], const Task<kHeads, kDims>& task, const Turn<SharedMemory::kSlots>& slot) {
    const int quad = threadIdx.x % 4, row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float scores[kPerRow][2];
    const auto d = [&](int i) { return pieces[i / 64][i % 64]; };
#pragma unroll
    for (int q = 0; q < kPerRow; ++q) {
      float sums[2][2] = {};
#pragma unroll
      for (int h = 0; h < kHeads; h += 4) {
        float4 w = make_float4(1, 1, 1, 1);
        if constexpr (kWeighted) w = *reinterpret_cast<const float4*>(&task.weights[4 * q + quad][h]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int at = (q * kHeads + h) * 2 + 2 * r;
          sums[r][0] = h == 0 ? relu(d(at)) * w.x : fmaf(relu(d(at)), w.x, sums[r][0]);
          sums[r][1] = h == 0 ? relu(d(at + 1)) * w.y : fmaf(relu(d(at + 1)), w.y, sums[r][1]);
          sums[r][0] = fmaf(relu(d(at + 4)), w.z, sums[r][0]);
          sums[r][1] = fmaf(relu(d(at + 5)), w.w, sums[r][1]);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) scores[q][r] = sums[r][0] + sums[r][1];
    }
    barrier_wait(&s.slot_empty[slot.at], slot.parity ^ 1);
#pragma unroll
    for (int q = 0; q < kPerRow; ++q)
#pragma unroll
      for (int r = 0; r < 2; ++r) s.slots[slot.at][4 * q + quad][row + 8 * r] = scores[q][r];
    __syncwarp();
    if (lane_id() == 0) barrier_arrive(&s.slot_full[slot.at]);
  }
  static __device__ __forceinline__ int group() { return threadIdx.x / 128 - 2; }
};

// Where a query's list lies.
struct Places {
  float* row;  // of the state
  int32_t* row_indices;
  float* ring;  // scores, then as many indices
  uint32_t mask;
  int k;
  __device__ __forceinline__ Places(const Problem& p, int64_t t, int list) : row(p.state_scores + t * p.k), row_indices(p.state_indices + t * p.k), ring(p.rings + static_cast<int64_t>(list) * 2 * p.ring), mask(p.ring - 1), k(p.k) {}
};

// Appends what beats the threshold. Each half of a warp looks at one query of a pair.
template <int kHeads, int kDims>
struct Keeper {
  using SharedMemory = Shared<kHeads, kDims>;
  static constexpr int kQueries = kColumns / kHeads;
  SharedMemory& s;
  const Problem& p;

  __device__ __forceinline__ void run() {
    Turn<SharedMemory::kSlots> slot;
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
      barrier_wait(&s.task_full[number & 1], number >> 1 & 1);
      const auto& task = s.tasks[number & 1];
      if (task.num_tiles < 0) return;
      begin_lists(task, number);
      const int first_key = task.first_tile * kKeyTile, keys = task.num_tiles * kKeyTile;
#pragma unroll 1
      for (int at = 0; at < keys; at += kSlotKeys) {
        barrier_wait(&s.slot_full[slot.at], slot.parity);
        const int key = first_key + at;
        const bool checked = key < task.all_begin || key + kSlotKeys > task.all_end;
#pragma unroll 1
        for (int q = 2 * warp(); q < kQueries; q += 2 * kKeepers) append(task, number, slot.at, q + lane_id() / 16, key, checked);
        __syncwarp();
        if (lane_id() == 0) barrier_arrive(&s.slot_empty[slot.at]);
        slot.advance(1);
        if (at % (4 * kKeyTile) == 0) tell_progress(number, false);
      }
      tell_progress(number, true);
      __syncwarp();
      if (lane_id() == 0) barrier_arrive(&s.task_empty[number & 1]);
    }
  }
  // Query of this lane where lanes stand for all queries of the warp; kQueries or more: none.
  __device__ __forceinline__ int own_query() const {
    static_assert((kQueries + 2 * kKeepers - 1) / (2 * kKeepers) * 2 <= 32);
    return (warp() + lane_id() / 2 * kKeepers) * 2 + lane_id() % 2;
  }
  __device__ __forceinline__ void begin_lists(const Task<kHeads, kDims>& task, uint32_t number) {
    const int q = own_query();
    if (q < kQueries) {
      // The entries that alternate are free when the list of two tasks ago is settled.
      while (observe(&s.finished[q]) + 1 < number) __nanosleep(100);
      s.ring_start[q] += max(0, s.appended[q] - p.k);
      s.appended[q] = task.first_counts[q];
      publish(&s.progress[number & 1][q], uint64_t{number + 1} << 32 | static_cast<uint32_t>(task.first_counts[q]));
    }
    __syncwarp();
  }
  __device__ __forceinline__ void tell_progress(uint32_t number, bool complete) {
    __syncwarp();
    const int q = own_query();
    if (q < kQueries) publish(&s.progress[number & 1][q], uint64_t{number + 1} << 32 | (complete ? 0x80000000u : 0u) | static_cast<uint32_t>(s.appended[q]));
  }
  __device__ __forceinline__ void append(const Task<kHeads, kDims>& task, uint32_t number, int slot, int q, int key, bool checked) {
    const int part = lane_id() % 16;
    key += 4 * part;
    const float4 four = *reinterpret_cast<const float4*>(&s.slots[slot][q][4 * part]);
    const uint64_t packed = observe_relaxed(&s.threshold[number & 1][q]);
    const float threshold = __uint_as_float(static_cast<uint32_t>(packed));
    const bool any = !(four.x < threshold) || !(four.y < threshold) || !(four.z < threshold) || !(four.w < threshold);
    if (!__any_sync(~0u, any)) return;
    const int32_t threshold_index = static_cast<int32_t>(packed >> 32);
    const float scores[4] = {four.x, four.y, four.z, four.w};
    uint32_t taken[4], mine = 0;
    int64_t t = task.first_query + q;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      bool take = !(scores[j] < threshold) && (!checked || (key + j >= task.begin[q] && key + j < task.end[q]));
      if (take && scores[j] != scores[j]) atomicMin(p.nan_query, static_cast<int32_t>(t));
      // NaN counts as -inf, which only a list without threshold takes. Ties go to the lower index.
      take = take && (scores[j] > threshold || ((scores[j] == threshold || threshold == -INFINITY) && static_cast<int32_t>(p.first_key) + key + j < threshold_index));
      taken[j] = __ballot_sync(~0u, take);
      mine |= take << j;
    }
    int count = s.appended[q];
    make_room(number, q, count);
    const Places places(p, t, blockIdx.x * kQueries + q);
    const uint32_t half = lane_id() < 16 ? 0xffffu : 0xffff0000u, below = half & ((1u << lane_id()) - 1), start = s.ring_start[q];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (mine >> j & 1) {
        const int at = count + __popc(taken[j] & below);
        const bool in_row = at < p.k;
        const uint32_t offset = in_row ? at : start + (at - p.k) & places.mask;
        const float score = scores[j] != scores[j] ? -INFINITY : scores[j] + 0.0f;
        __stcg((in_row ? places.row : places.ring) + offset, score);
        __stcg((in_row ? places.row_indices : reinterpret_cast<int32_t*>(places.ring) + p.ring) + offset, static_cast<int32_t>(p.first_key) + key + j);
      }
      count += __popc(taken[j] & half);
    }
    __syncwarp();
    if (part == 0) s.appended[q] = count;
    __syncwarp();
  }
  // Waits until both lists of a pair can take all keys of a slot.
  __device__ __forceinline__ void make_room(uint32_t number, int q, int count) {
    const uint32_t tail = s.ring_start[q] + max(0, count - p.k);
    if (!__any_sync(~0u, p.ring - (tail - observe(&s.ring_head[q])) < kSlotKeys)) return;
    tell_progress(number, false);
    while (__any_sync(~0u, p.ring - (tail - observe(&s.ring_head[q])) < kSlotKeys)) __nanosleep(100);
  }
  static __device__ __forceinline__ uint64_t observe_relaxed(const uint64_t* from) { return *const_cast<const volatile uint64_t*>(from); }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 - 1; }
};

// What a selection reads and writes: k entries of the state's row, then entries of the ring.
struct List {
  Places places;
  uint32_t head;  // of the ring
  __device__ __forceinline__ float score(int i) const { return __ldcg(i < places.k ? places.row + i : places.ring + (head + i - places.k & places.mask)); }
  __device__ __forceinline__ Candidate at(int i) const {
    const bool in_row = i < places.k;
    const uint32_t offset = in_row ? i : head + i - places.k & places.mask;
    return {__ldcg((in_row ? places.row : places.ring) + offset), __ldcg((in_row ? places.row_indices : reinterpret_cast<int32_t*>(places.ring) + places.mask + 1) + offset)};
  }
  __device__ __forceinline__ void put(int i, Candidate c) const {
    __stcg(places.row + i, c.score);
    __stcg(places.row_indices + i, c.index);
  }
};

// Cuts lists to their k best. Lanes stand for the queries of the warp.
template <int kHeads, int kDims>
struct Selector {
  using SharedMemory = Shared<kHeads, kDims>;
  static constexpr int kQueries = kColumns / kHeads;
  SharedMemory& s;
  const Problem& p;

  __device__ __forceinline__ void run() {
    const int q = warp() + kSelectors * lane_id();
    uint32_t head = 0;  // ring entries consumed
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
      barrier_wait(&s.task_full[number & 1], number >> 1 & 1);
      const auto& task = s.tasks[number & 1];
      if (task.num_tiles < 0) return;
      const uint32_t start = head;
      bool settled = q >= kQueries;
      for (uint32_t full = __ballot_sync(~0u, !settled && task.first_counts[min(q, kQueries - 1)] == p.k); full != 0; full &= full - 1)
        restore_threshold(warp() + kSelectors * (__ffs(full) - 1), task.first_query, number);
#pragma unroll 1
      while (!__all_sync(~0u, settled)) {
        const uint64_t progress = settled ? 0 : observe(&s.progress[number & 1][q]);
        const bool known = !settled && progress >> 32 == number + 1, complete = known && (progress & 0x80000000u);
        const int count = static_cast<int>(progress & 0x7fffffffu), waiting = known ? max(0, count - p.k) - static_cast<int>(head - start) : 0;
        // What is complete comes first: its task holds up another.
        const int urgency = complete ? INT32_MAX : waiting >= p.select_at ? waiting : 0, most = __reduce_max_sync(~0u, urgency);
        if (most == 0) {
          __nanosleep(500);
          continue;
        }
        const int lane = __ffs(__ballot_sync(~0u, urgency == most)) - 1;
        if (const int entries = __shfl_sync(~0u, waiting, lane); entries > 0) select(warp() + kSelectors * lane, task.first_query, number, __shfl_sync(~0u, head, lane), entries);
        __syncwarp();
        if (lane_id() == lane) {
          head += waiting;
          publish(&s.ring_head[q], head);
          if (complete) {
            settled = true;
            const int64_t t = task.first_query + q;
            if (t < p.queries) p.state_counts[t] = min(count, p.k);
            s.threshold[number & 1][q] = kNoThreshold;
            publish(&s.finished[q], number + 1);
          }
        }
        __syncwarp();
      }
      if (lane_id() == 0) barrier_arrive(&s.task_empty[number & 1]);
    }
  }
  __device__ __forceinline__ void tell(int q, uint32_t number, float score, int32_t index) {
    if (lane_id() == 0) *const_cast<volatile uint64_t*>(&s.threshold[number & 1][q]) = threshold_of(score, index);
  }
  // A full state's worst entry.
  __device__ __forceinline__ void restore_threshold(int q, int64_t first_query, uint32_t number) {
    const List list{Places(p, first_query + q, blockIdx.x * kQueries + q), 0};
    uint64_t worst = ~uint64_t{0};
    topk::for_each_candidate(list, p.k, lane_id(), [&](Candidate c) { worst = min(worst, topk::rank_of(c)); });
    worst = topk::warp_min(worst);
    tell(q, number, topk::score_of(worst), topk::index_of(worst));
  }
  __device__ __forceinline__ void select(int q, int64_t first_query, uint32_t number, uint32_t head, int entries) {
    const List list{Places(p, first_query + q, blockIdx.x * kQueries + q), head};
    const float floor = __uint_as_float(static_cast<uint32_t>(s.threshold[number & 1][q]));
    const uint64_t kth = topk::keep_best(list, p.k + entries, p.k, floor, s.scratch[warp()], lane_id(), [&](float score) {
      if (score > floor) tell(q, number, score, INT32_MAX);
    });
    tell(q, number, topk::score_of(kth), topk::index_of(kth));
  }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 - 4; }
};

template <int kHeads, int kDims, bool kWeighted>
__global__ void __launch_bounds__(kThreads, 1) flash_topk_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap key_map, const __grid_constant__ Problem p) {
  using SharedMemory = Shared<kHeads, kDims>;
  extern __shared__ __align__(1024) char raw[];
  auto& s = *reinterpret_cast<SharedMemory*>(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < SharedMemory::kStages; ++i) barrier_init(&s.full[i], 1), barrier_init(&s.empty[i], 2);
    for (int i = 0; i < SharedMemory::kSlots; ++i) barrier_init(&s.slot_full[i], 4), barrier_init(&s.slot_empty[i], kKeepers);
    for (int i = 0; i < 2; ++i) barrier_init(&s.task_full[i], 1), barrier_init(&s.task_empty[i], 8 + kKeepers + kSelectors);
    barrier_init(&s.q_full, 1);
    barrier_init(&s.q_empty, 2);
    fence_to_async();
  }
  for (int q = threadIdx.x; q < SharedMemory::kQueries; q += kThreads) {
    s.threshold[0][q] = s.threshold[1][q] = kNoThreshold;
    s.progress[0][q] = s.progress[1][q] = 0;
    s.appended[q] = 0, s.ring_start[q] = s.ring_head[q] = s.finished[q] = 0;
  }
  __syncthreads();
  if (threadIdx.x < 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
    if (threadIdx.x < 32)
      Loader<kHeads, kDims, kWeighted>{s, p, &q_map, &key_map}.run();
    else if (threadIdx.x < 128)
      Keeper<kHeads, kDims>{s, p}.run();
    else
      Selector<kHeads, kDims>{s, p}.run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 176;");
    Scorer<kHeads, kDims, kWeighted>{s}.run();
  }
}

__global__ void begin_kernel(int32_t* counts, int64_t queries, int32_t* nan_query) {
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; t < queries; t += static_cast<int64_t>(gridDim.x) * blockDim.x) counts[t] = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) *nan_query = static_cast<int32_t>(queries);
}

// Sorts the indices of one query; what is beyond its count becomes -1.
template <int kThreadsPerQuery, int kItems>
__global__ void __launch_bounds__(kThreadsPerQuery) finish_kernel(const int32_t* __restrict__ indices, const int32_t* __restrict__ counts, int32_t* __restrict__ out,
                                                                  int32_t* __restrict__ out_counts, int k) {
  using Sort = cub::BlockRadixSort<uint32_t, kThreadsPerQuery, kItems>;
  __shared__ typename Sort::TempStorage storage;
  const int64_t t = blockIdx.x;
  const int count = counts[t];
  uint32_t items[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = threadIdx.x * kItems + i;
    items[i] = at < count ? static_cast<uint32_t>(indices[t * k + at]) : ~0u;  // the last after sorting, and -1
  }
  Sort(storage).SortBlockedToStriped(items);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = i * kThreadsPerQuery + threadIdx.x;
    if (at < k) out[t * k + at] = static_cast<int32_t>(items[i]);
  }
  if (threadIdx.x == 0) out_counts[t] = count;
}

CUtensorMap make_map(const void* base, int rank, const cuuint64_t* sizes, const cuuint64_t* byte_steps, const cuuint32_t* box) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result), "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const cuuint32_t unit[4] = {1, 1, 1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(rank), const_cast<void*>(base), sizes, byte_steps, box, unit, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HYSCALE_CHECK(result == CUDA_SUCCESS, "tensor map at ", base, ": error ", static_cast<int>(result));
  return map;
}
CUtensorMap map_of_keys(const Tensor& keys) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(keys.size(1)), static_cast<cuuint64_t>(keys.size(0))}, steps[] = {static_cast<cuuint64_t>(keys.stride(0) * 2)};
  const cuuint32_t box[] = {64, kKeyTile};
  return make_map(keys.raw(), 2, sizes, steps, box);
}
// Boxes of four queries: dimensions, odd or even head, query, pair of heads.
CUtensorMap map_of_queries(const Tensor& q) {
  const auto queries = static_cast<cuuint64_t>(q.size(0)), heads = static_cast<cuuint64_t>(q.size(1)), dims = static_cast<cuuint64_t>(q.size(2));
  const cuuint64_t sizes[] = {dims, 2, queries, heads / 2}, steps[] = {dims * 2, heads * dims * 2, dims * 4};
  const cuuint32_t box[] = {64, 2, 4, static_cast<cuuint32_t>(heads / 2)};
  return make_map(q.raw(), 4, sizes, steps, box);
}

int num_blocks() {
  int device = 0, processors = 0;
  check_cuda(cudaGetDevice(&device), "flash_topk");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "flash_topk");
  return std::min(processors, topk::kMostBlocks);
}

template <int kHeads, int kDims, bool kWeighted>
void launch(const FlashTopKUpdate& u, Problem p) {
  using SharedMemory = Shared<kHeads, kDims>;
  const auto kernel = flash_topk_kernel<kHeads, kDims, kWeighted>;
  constexpr int kBytes = sizeof(SharedMemory);
  static_assert(kBytes <= 232448);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "flash_topk");
  const CUtensorMap q_map = map_of_queries(u.q), key_map = map_of_keys(u.keys);
  const int64_t tasks = (p.queries + kColumns / kHeads - 1) / (kColumns / kHeads);
  kernel<<<static_cast<unsigned>(std::min<int64_t>(num_blocks(), tasks)), kThreads, kBytes, stream_of(u.stream)>>>(q_map, key_map, p);
  check_launch("flash_topk");
}

template <int kHeads, int kDims>
void launch_weighted(const FlashTopKUpdate& u, const Problem& p) {
  if constexpr (kHeads >= 8)
    u.weights.defined() ? launch<kHeads, kDims, true>(u, p) : launch<kHeads, kDims, false>(u, p);
  else
    launch<kHeads, kDims, false>(u, p);
}

void launch_shape(const FlashTopKUpdate& u, const Problem& p) {
  const int64_t heads = u.q.size(1), dims = u.q.size(2);
  if (dims == 128 && heads == 32) return launch_weighted<32, 128>(u, p);
  if (dims == 128 && heads == 64) return launch_weighted<64, 128>(u, p);
  if (dims == 128 && heads == 4) return launch_weighted<4, 128>(u, p);
  if (dims == 64 && heads == 32) return launch_weighted<32, 64>(u, p);
  if (dims == 64 && heads == 64) return launch_weighted<64, 64>(u, p);
  if (dims == 64 && heads == 4) return launch_weighted<4, 64>(u, p);
  throw InternalError(concat("flash_topk has no tensor-core form for ", heads, " heads of ", dims));
}

}  // namespace

void flash_topk_begin_cuda(FlashTopKState& s, Stream stream) {
  HYSCALE_CHECK(s.k <= 4096, "k is ", s.k, ", at most 4096 on CUDA");
  const int64_t queries = s.counts.size(0);
  begin_kernel<<<grid_for(queries, 256), 256, 0, stream_of(stream)>>>(s.counts.i32(), queries, s.nan_query.i32());
  check_launch("flash_topk begin");
}

void flash_topk_update_cuda(FlashTopKState& s, const FlashTopKUpdate& u) {
  HYSCALE_CHECK(u.q.dtype() == DType::bf16, "q is ", to_string(u.q), "; expected bf16");
  HYSCALE_CHECK(s.k <= 4096, "k is ", s.k, ", at most 4096 on CUDA");
  Workspace workspace(u.workspace);
  Problem p{};
  p.weights = u.weights.defined() ? u.weights.f32() : nullptr;
  p.begin = u.begin.i32();
  p.end = u.end.i32();
  p.queries = u.q.size(0);
  p.num_keys = u.keys.size(0);
  p.first_key = u.first_key;
  p.k = static_cast<int>(s.k);
  p.ring = topk::ring_capacity(s.k);
  p.select_at = topk::select_at(s.k);
  p.state_scores = s.scores.f32();
  p.state_indices = s.indices.i32();
  p.state_counts = s.counts.i32();
  p.nan_query = s.nan_query.i32();
  p.next_task = workspace.take<int32_t>(1);
  p.rings = workspace.take<float>(topk::list_bytes(u, s.k) / 4);
  if (!topk::has_tensor_core_form(u)) return flash_topk_update_plain_cuda(s, u, p.rings);
  HYSCALE_CHECK(u.keys.stride(0) % 8 == 0 && reinterpret_cast<uintptr_t>(u.keys.raw()) % 16 == 0, "keys ", to_string(u.keys), " with rows of ", u.keys.stride(0),
                " elements: rows start at multiples of 16 bytes");
  check_cuda(cudaMemsetAsync(p.next_task, 0, sizeof(int32_t), stream_of(u.stream)), "flash_topk");
  launch_shape(u, p);
}

void flash_topk_finish_cuda(const FlashTopKState& s, const Selection& out, Stream stream) {
  const int64_t queries = s.counts.size(0);
  const int k = static_cast<int>(s.k);
  if (queries == 0) return;
  const auto launch_sort = [&](auto kernel, int threads) {
    kernel<<<static_cast<unsigned>(queries), threads, 0, stream_of(stream)>>>(s.indices.i32(), s.counts.i32(), out.indices.i32(), out.counts.i32(), k);
  };
  if (k <= 256) launch_sort(finish_kernel<64, 4>, 64);
  else if (k <= 512) launch_sort(finish_kernel<64, 8>, 64);
  else if (k <= 1024) launch_sort(finish_kernel<128, 8>, 128);
  else if (k <= 2048) launch_sort(finish_kernel<128, 16>, 128);
  else launch_sort(finish_kernel<256, 16>, 256);
  check_launch("flash_topk finish");
}

}  // namespace hyscale
