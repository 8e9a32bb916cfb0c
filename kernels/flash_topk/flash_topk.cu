// FlashTopK on Hopper. Keys are the rows and 256 (query, head) pairs the columns of a matrix product. Four kinds of warps share
// a persistent block, each a loop over the block's tasks (a task is the queries of 256 pairs):
//
//   loader     1 warp         fetches tasks, feeds queries and key tiles through TMA
//   scorers    2 warpgroups   take turns on the tensor cores, one multiplying while the other adds up heads; scores of 64
//                             keys go to a slot in shared memory
//   keepers    1 to 4 warps   append what beats a query's threshold to its list
//   selectors  the rest of 8  cut lists to their k best (select.cuh) and raise thresholds, while scoring goes on
//
// Lists lie in global memory (they stay in L2): what the last selection kept, and a ring of what came since. A stale
// threshold only lets too much in, so keepers wait for selectors just when a ring is full, and one task's last selection
// runs under the next task's scoring.
//
// Columns are ordered so that all heads of a query lie in one thread: column 8 j + 2 c + e of lane c in a quad is head
// 2 (j % (H/2)) + e of query 4 (j / (H/2)) + c. A score is (sum of even heads) + (sum of odd heads), each in order, so its
// bits depend on the rows of q, w and keys alone.
#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"
#include "kernels/common/op.h"
#include "kernels/common/tensor_map.cuh"
#include "kernels/flash_topk/flash_topk_cuda.h"
#include "kernels/flash_topk/select.cuh"

namespace hyscale {

void flash_topk_update_plain_cuda(FlashTopKState&, const FlashTopKUpdate&, void* lists);

namespace {

using namespace hopper;
using topk::Candidate;
using topk::kColumns;
using topk::kKeyTile;

constexpr int kThreads = 512;  // warps 0: loader, then keepers, selectors to 7, 8-15: scorers
constexpr int kRegisters = 96, kScorerRegisters = 160;  // per thread
constexpr int kSlotKeys = kKeyTile / 2, kSlotStride = kSlotKeys + 8;  // the pad spreads a quad's four queries over the banks

template <int kHeads, int kDims>
struct Task {
  static constexpr int kQueries = kColumns / kHeads;
  int64_t first_query;
  int first_tile, num_tiles;           // no more tasks: num_tiles < 0
  int all_begin, all_end;              // keys that every query with keys sees
  int begin[kQueries], end[kQueries];  // visible keys, relative to the first of this update
  int first_counts[kQueries];          // entries from earlier updates
  alignas(16) float weights[kHeads >= 8 ? kQueries : 1][kHeads + 4];
};

template <int kHeads, int kDims>
struct __align__(1024) Shared {
  static constexpr int kQueries = kColumns / kHeads;
  static constexpr int kStages = kDims == 64 ? 4 : kHeads == 4 ? 2 : 3, kSlots = kHeads == 4 ? 3 : 6;
  static constexpr int kKeepers = kQueries <= 16 ? kQueries / 4 : 4, kSelectors = 7 - kKeepers;
  bf16 q[kDims / 64][kColumns * 64];
  bf16 keys[kStages][kDims / 64][kKeyTile * 64];
  float slots[kSlots][kQueries][kSlotStride];  // scores of 64 keys
  Task<kHeads, kDims> tasks[2];
  topk::Scratch scratch[kSelectors];
  // Tasks alternate between two entries where a keeper may be a task ahead of a selector.
  uint64_t threshold[2][kQueries];  // what scores have to beat; selectors raise it
  uint64_t progress[2][kQueries];   // task number + 1, whether all has come (a bit), tail of the ring; keepers write
  uint32_t tail[kQueries];          // entries that ever came into the ring; keepers' own
  uint32_t head[kQueries];          // entries that ever left it; selectors write
  uint32_t finished[kQueries];      // tasks whose list is settled; selectors write
  uint64_t full[kStages], empty[kStages], q_full, q_empty, slot_full[kSlots], slot_empty[kSlots], task_full[2], task_empty[2];
};

struct Problem {
  const float* weights;  // [T, H] or null
  const int32_t *begin, *end;
  int64_t queries, num_keys, first_key;
  int k, ring, select_at;  // entries of a ring: a power of two; entries beyond k that make a selection worthwhile
  float* state_scores;
  int32_t *state_indices, *state_counts, *nan_query;
  Candidate* lists;  // [blocks][queries of a block][list_entries]: kept ones, ring
  int64_t list_entries;
  int32_t* next_task;
};

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
        describe(task, (num_tasks - 1 - next) * kQueries, number);  // late queries see most keys: the longest tasks first
      } while (task.num_tiles == 0);                                // the state stays as it is
      if (lane_id() == 0) {
        barrier_arrive(&s.task_full[number & 1]);
        load(task, number, stage);
      }
      __syncwarp();
    }
  }
  __device__ __forceinline__ void describe(Task<kHeads, kDims>& task, int64_t first_query, uint32_t number) {
    int low = INT32_MAX, high = 0, all_begin = 0, all_end = INT32_MAX;
    for (int q = lane_id(); q < kQueries; q += 32) {
      const int64_t t = first_query + q;
      const bool exists = t < p.queries;
      int begin = exists ? static_cast<int>(max(p.begin[t] - p.first_key, int64_t{0})) : 0, end = exists ? static_cast<int>(min(p.end[t] - p.first_key, p.num_keys)) : 0;
      if (begin >= end) begin = end = 0;
      task.begin[q] = begin;
      task.end[q] = end;
      task.first_counts[q] = exists ? p.state_counts[t] : 0;
      s.threshold[number & 1][q] = begin < end ? topk::kNoThreshold : topk::kClosed;
      if (begin >= end) continue;
      low = min(low, begin), high = max(high, end);
      all_begin = max(all_begin, begin), all_end = min(all_end, end);
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
        score(task, stage, slot, i == num_tiles - 1);
        stage.advance(1);
        slot.advance(2);
      }
      if (lane_id() == 0) barrier_arrive(&s.task_empty[number & 1]);
    }
    if (group() == 0) named_sync(1, 256);
  }
  // Two halves of the columns: the first one's heads are added while the second is multiplied.
  __device__ __forceinline__ void score(const Task<kHeads, kDims>& task, const Turn<SharedMemory::kStages>& stage, const Turn<SharedMemory::kSlots>& slot, bool last) {
    float d[2][64], sums[kPerRow][2][2];
    barrier_wait(&s.full[stage.at], stage.parity);
    named_sync(1 + group(), 256);  // this group's turn
    wgmma_begin();
    multiply(d[0], stage, 0);
    wgmma_commit();
    multiply(d[1], stage, 1);
    wgmma_commit();
    named_arrive(1 + (1 - group()), 256);
    wgmma_wait<1>();
    pin(d[0]);
    add_heads(d[0], task, 0, sums);
    wgmma_wait<0>();
    pin(d[1]);
    if (threadIdx.x % 128 == 0) {
      barrier_arrive(&s.empty[stage.at]);
      if (last) barrier_arrive(&s.q_empty);
    }
    add_heads(d[1], task, 1, sums);
    barrier_wait(&s.slot_empty[slot.at], slot.parity ^ 1);
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int q = 0; q < kPerRow; ++q)
#pragma unroll
      for (int r = 0; r < 2; ++r) s.slots[slot.at][4 * q + threadIdx.x % 4][row + 8 * r] = sums[q][r][0] + sums[q][r][1] + 0.0f;  // never -0
    __syncwarp();
    if (lane_id() == 0) barrier_arrive(&s.slot_full[slot.at]);
  }
  __device__ __forceinline__ void multiply(float (&d)[64], const Turn<SharedMemory::kStages>& stage, int half) {
#pragma unroll
    for (int step = 0; step < kDims / 16; ++step) {
      const uint64_t a = row_descriptor(shared_address(s.keys[stage.at][step / 4]) + group() * kTileBytes) + step % 4 * 2;
      const uint64_t b = row_descriptor(shared_address(s.q[step / 4]) + half * 2 * kTileBytes) + step % 4 * 2;
      if (step == 0)
        wgmma_n128_first(d, a, b);
      else
        wgmma_n128<0, 0>(d, a, b, 1);
    }
  }
  // d: a thread's products of its two rows with half of the columns, pairs of heads by row.
  __device__ __forceinline__ void add_heads(const float (&d)[64], const Task<kHeads, kDims>& task, int half, float (&sums)[kPerRow][2][2]) {
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      const int q = (half * 32 + i) / kHeads, h = (half * 32 + i) % kHeads;
      float4 w = make_float4(1, 1, 1, 1);
      if constexpr (kWeighted) w = *reinterpret_cast<const float4*>(&task.weights[4 * q + threadIdx.x % 4][h]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        auto& sum = sums[q][r];
        const int at = i * 2 + 2 * r;
        sum[0] = h == 0 ? relu(d[at]) * w.x : fmaf(relu(d[at]), w.x, sum[0]);
        sum[1] = h == 0 ? relu(d[at + 1]) * w.y : fmaf(relu(d[at + 1]), w.y, sum[1]);
        sum[0] = fmaf(relu(d[at + 4]), w.z, sum[0]);
        sum[1] = fmaf(relu(d[at + 5]), w.w, sum[1]);
      }
    }
  }
  static __device__ __forceinline__ int group() { return threadIdx.x / 128 - 2; }
};

// Appends what beats the threshold. Eight lanes look at one query's scores. All that a warp has to look at, it looks at in
// one go: for one query and slot the latencies of a single warp alone would outlast the tensor cores' turn.
template <int kHeads, int kDims>
struct Keeper {
  using SharedMemory = Shared<kHeads, kDims>;
  static constexpr int kQueries = kColumns / kHeads, kKeepers = SharedMemory::kKeepers;
  static constexpr int kSlotsTogether = kQueries > 16 ? 1 : 2, kGroups = kQueries / 4 / kKeepers;  // fours of queries
  static constexpr int kMine = 8 * kSlotsTogether;                                                 // keys of a lane
  static_assert(kQueries % (4 * kKeepers) == 0 && 4 * kGroups <= 32 && SharedMemory::kSlots % kSlotsTogether == 0);
  using Slots = float[SharedMemory::kSlots][kQueries][kSlotStride];
  SharedMemory& s;
  const Problem& p;

  __device__ __forceinline__ void run() {
    Turn<SharedMemory::kSlots> slot;
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
      barrier_wait(&s.task_full[number & 1], number >> 1 & 1);
      const auto& task = s.tasks[number & 1];
      if (task.num_tiles < 0) return;
      // The entries that alternate are free when the list of two tasks ago is settled.
      if (owns_query())
        while (observe(&s.finished[own_query()]) + 1 < number) __nanosleep(100);
      tell_progress(number, false);
      const int first_key = task.first_tile * kKeyTile, keys = task.num_tiles * kKeyTile;
#pragma unroll 1
      for (int at = 0; at < keys; at += kSlotsTogether * kSlotKeys) {
#pragma unroll
        for (int i = 0; i < kSlotsTogether; ++i) barrier_wait(&s.slot_full[slot.at + i], slot.parity);
        append(task, number, slot.at, first_key + at);
        if (lane_id() < kSlotsTogether) barrier_arrive(&s.slot_empty[slot.at + lane_id()]);
        slot.advance(kSlotsTogether);
        if (at % (4 * kKeyTile) == 0) tell_progress(number, false);
      }
      tell_progress(number, true);
      if (lane_id() == 0) barrier_arrive(&s.task_empty[number & 1]);
    }
  }
  // Query of this lane where lanes stand for the queries of the warp.
  static __device__ __forceinline__ bool owns_query() { return lane_id() < kQueries / kKeepers; }
  static __device__ __forceinline__ int own_query() { return (warp() + lane_id() / 4 * kKeepers) * 4 + lane_id() % 4; }
  __device__ __forceinline__ void tell_progress(uint32_t number, bool complete) {
    __syncwarp();
    if (owns_query()) publish(&s.progress[number & 1][own_query()], uint64_t{number + 1} << 33 | uint64_t{complete} << 32 | s.tail[own_query()]);
    __syncwarp();
  }
  __device__ __forceinline__ void append(const Task<kHeads, kDims>& task, uint32_t number, int slot, int first_key) {
    float mine[kGroups][kMine], least[kGroups];
    uint32_t take[kGroups] = {};
    bool some = false, odd = false;
    const bool checked = first_key < task.all_begin || first_key + kSlotsTogether * kSlotKeys > task.all_end;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int q = query_of(g);
      load_scores(mine[g], slot, q);
      least[g] = topk::threshold_score(threshold_of(number, q));
      odd |= full(q);
#pragma unroll
      for (int j = 0; j < kMine; ++j)
        if (!(mine[g][j] < least[g])) take[g] |= 1u << j;
      if (checked) take[g] &= visible(task, q, first_key);
      some |= take[g] != 0;
    }
    if (!__any_sync(~0u, some)) return;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint32_t above = 0;
#pragma unroll
      for (int j = 0; j < kMine; ++j)
        if (mine[g][j] > least[g]) above |= 1u << j;
      odd |= (take[g] & ~above) != 0;
    }
    if (__any_sync(~0u, odd))
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int q = query_of(g);
        take[g] = look_closer(task.first_query + q, slot, q, first_key, take[g], threshold_of(number, q));
        load_scores(mine[g], slot, q);
        make_room(number, q);
      }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int q = query_of(g);
      uint32_t at = take_places(&s.tail[q], take[g]);
      Candidate* ring = p.lists + (static_cast<int64_t>(blockIdx.x) * kQueries + q + 1) * p.list_entries - p.ring;
      asm("" : "+l"(ring));  // else the sum is taken apart, and each address takes four instructions
      const int32_t index = static_cast<int32_t>(p.first_key) + first_key + key_of(0);
#pragma unroll
      for (int j = 0; j < kMine; ++j) {
        store_if(take[g] & 1u << j, ring + (at & static_cast<uint32_t>(p.ring - 1)), mine[g][j], index + key_of(j) - key_of(0));
        at += take[g] >> j & 1;
      }
    }
    __syncwarp();
  }
  static __device__ __forceinline__ int query_of(int group) { return 4 * (warp() + group * kKeepers) + lane_id() / 8; }
  // This lane's keys: of each slot four at 4 * (lane % 8), four 32 keys on.
  static __device__ __forceinline__ int key_of(int j) { return j / 8 * kSlotKeys + lane_id() % 8 * 4 + (j & 3) + (j & 4) * 8; }
  __device__ __forceinline__ float& score_of(int j, int slot, int q) const { return s.slots[slot + j / 8][q][key_of(j) % kSlotKeys]; }
  __device__ __forceinline__ void load_scores(float (&mine)[kMine], int slot, int q) const {
#pragma unroll
    for (int j = 0; j < kMine; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&score_of(j, slot, q));
      mine[j] = four.x, mine[j + 1] = four.y, mine[j + 2] = four.z, mine[j + 3] = four.w;
    }
  }
  __device__ __forceinline__ uint32_t visible(const Task<kHeads, kDims>& task, int q, int first_key) const {
    const int begin = task.begin[q] - first_key, end = task.end[q] - first_key;
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < kMine; ++j)
      if (key_of(j) >= begin && key_of(j) < end) bits |= 1u << j;
    return bits;
  }
  // A place for every bit. Predicates here and below, since branches of few lanes cost more than what they skip.
  static __device__ __forceinline__ uint32_t take_places(uint32_t* tail, uint32_t take) {
    uint32_t first = 0;
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p atom.shared.add.u32 %0, [%1], %3;\n}" : "+r"(first) : "r"(shared_address(tail)), "r"(take), "r"(__popc(take)) : "memory");
    return first;
  }
  static __device__ __forceinline__ void store_if(uint32_t condition, Candidate* to, float score, int32_t index) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.cg.v2.b32 [%1], {%2, %3};\n}" ::"r"(condition), "l"(to), "f"(score), "r"(index) : "memory");
  }
  // Equals of the threshold go by their index; NaN is told and becomes a score that nothing prefers. A query that sees no
  // key is told of none.
  __device__ __forceinline__ uint32_t look_closer(int64_t t, int slot, int q, int first_key, uint32_t take, uint64_t threshold) {
    const float least = topk::threshold_score(threshold);
    uint32_t rest = 0;
    if (threshold == topk::kClosed) take = 0;
    for (; take != 0; take &= take - 1) {
      const int j = __ffs(take) - 1;
      float& score = score_of(j, slot, q);
      if (score != score) {
        atomicMin(p.nan_query, static_cast<int32_t>(t));
        score = -INFINITY;
      }
      if (score > least || (score == least && static_cast<int32_t>(p.first_key) + first_key + key_of(j) < topk::threshold_index(threshold))) rest |= 1u << j;
    }
    __syncwarp();
    return rest;
  }
  // Waits until the lists of four queries can take all that comes at once.
  __device__ __forceinline__ void make_room(uint32_t number, int q) {
    if (!__any_sync(~0u, full(q))) return;
    tell_progress(number, false);
    while (__any_sync(~0u, full(q))) __nanosleep(100);
  }
  // A selector publishes the head after its last look at what lies before it.
  __device__ __forceinline__ bool full(int q) const { return static_cast<uint32_t>(p.ring) - (s.tail[q] - *const_cast<const volatile uint32_t*>(&s.head[q])) < kSlotsTogether * kSlotKeys; }
  __device__ __forceinline__ uint64_t threshold_of(uint32_t number, int q) const { return *const_cast<const volatile uint64_t*>(&s.threshold[number & 1][q]); }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 - 1; }
};

// Cuts lists to their k best. Lanes stand for the queries of the warp.
template <int kHeads, int kDims>
struct Selector {
  using SharedMemory = Shared<kHeads, kDims>;
  static constexpr int kQueries = kColumns / kHeads, kSelectors = SharedMemory::kSelectors;
  SharedMemory& s;
  const Problem& p;

  __device__ __forceinline__ void run() {
    static_assert(kQueries <= 32 * kSelectors);
    const int q = warp() + kSelectors * lane_id();
    uint32_t head = 0;  // of this lane's ring
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
      barrier_wait(&s.task_full[number & 1], number >> 1 & 1);
      const auto& task = s.tasks[number & 1];
      if (task.num_tiles < 0) return;
      bool settled = q >= kQueries;
      int kept = settled ? 0 : task.first_counts[q];
      for (uint32_t some = __ballot_sync(~0u, kept > 0); some != 0; some &= some - 1) {
        const int lane = __ffs(some) - 1;
        load_state(warp() + kSelectors * lane, task.first_query, number, __shfl_sync(~0u, kept, lane));
      }
#pragma unroll 1
      while (!__all_sync(~0u, settled)) {
        const uint64_t progress = settled ? 0 : observe(&s.progress[number & 1][q]);
        const bool known = !settled && progress >> 33 == number + 1, complete = known && (progress >> 32 & 1);
        const int waiting = known ? static_cast<int>(static_cast<uint32_t>(progress) - head) : 0;
        // What is complete comes first: its task holds up another.
        const int urgency = complete ? INT32_MAX : kept + waiting >= p.k + p.select_at ? waiting : 0, most = __reduce_max_sync(~0u, urgency);
        if (most == 0) {
          __nanosleep(500);
          continue;
        }
        const int lane = __ffs(__ballot_sync(~0u, urgency == most)) - 1;
        const int now_kept = select(warp() + kSelectors * lane, task.first_query, number, __shfl_sync(~0u, kept, lane), __shfl_sync(~0u, head, lane), __shfl_sync(~0u, waiting, lane),
                                    most == INT32_MAX);
        if (lane_id() == lane) {
          kept = now_kept;
          head += waiting;
          publish(&s.head[q], head);
          if (complete) {
            settled = true;
            publish(&s.finished[q], number + 1);
          }
        }
        __syncwarp();
      }
      if (lane_id() == 0) barrier_arrive(&s.task_empty[number & 1]);
    }
  }
  __device__ __forceinline__ topk::List list_of(int q, int kept, uint32_t head, int waiting) const {
    Candidate* list = p.lists + (static_cast<int64_t>(blockIdx.x) * kQueries + q) * p.list_entries;
    return {list, kept, list + p.list_entries - p.ring, static_cast<uint32_t>(p.ring - 1), head, waiting};
  }
  __device__ __forceinline__ void tell(int q, uint32_t number, uint64_t threshold) {
    if (lane_id() == 0) *const_cast<volatile uint64_t*>(&s.threshold[number & 1][q]) = threshold;
  }
  // Entries of earlier updates; a full state brings its threshold.
  __device__ __forceinline__ void load_state(int q, int64_t first_query, uint32_t number, int count) {
    const int64_t at = (first_query + q) * p.k;
    Candidate* to = list_of(q, 0, 0, 0).kept;
    uint64_t worst = ~uint64_t{0};
#pragma unroll 4
    for (int i = lane_id(); i < count; i += 32) {
      const Candidate c{p.state_scores[at + i], p.state_indices[at + i]};
      topk::store_candidate(to + i, c);
      worst = min(worst, topk::rank_of(c));
    }
    worst = topk::warp_min(worst);
    if (count == p.k && s.threshold[number & 1][q] != topk::kClosed) tell(q, number, topk::make_threshold(topk::score_of(worst), topk::index_of(worst)));
    __syncwarp();
  }
  // Returns the entries kept; the last selection of a task leaves them in the state.
  __device__ __forceinline__ int select(int q, int64_t first_query, uint32_t number, int kept, uint32_t head, int waiting, bool last) {
    const topk::List list = list_of(q, kept, head, waiting);
    if (kept + waiting > p.k)
      kept = topk::keep_best(list, p.k, last, s.threshold[number & 1][q], s.scratch[warp()], lane_id(), [&](uint64_t threshold) { tell(q, number, threshold); });
    else if (waiting > 0)
      kept = topk::keep(list, s.scratch[warp()], lane_id(), [](Candidate) { return true; });
    const int64_t t = first_query + q;
    if (!last || t >= p.queries) return kept;
    const topk::List best{list.kept, kept, list.ring, list.mask, 0, 0};
    best.for_each_chunk(s.scratch[warp()], lane_id(), [&](const Candidate(&c)[topk::kEach], uint32_t valid, int first) {
#pragma unroll
      for (int j = 0; j < topk::kEach; ++j)
        if (valid >> j & 1) {
          const int64_t at = t * p.k + first + topk::List::place(j, lane_id());
          p.state_scores[at] = c[j].score;
          p.state_indices[at] = c[j].index;
        }
    });
    if (lane_id() == 0) p.state_counts[t] = kept;
    __syncwarp();
    return kept;
  }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 - 1 - SharedMemory::kKeepers; }
};

template <int kHeads, int kDims, bool kWeighted>
__global__ void __launch_bounds__(kThreads, 1) flash_topk_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap key_map, const __grid_constant__ Problem p) {
  using SharedMemory = Shared<kHeads, kDims>;
  extern __shared__ __align__(1024) char raw[];
  auto& s = *reinterpret_cast<SharedMemory*>(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < SharedMemory::kStages; ++i) barrier_init(&s.full[i], 1), barrier_init(&s.empty[i], 2);
    for (int i = 0; i < SharedMemory::kSlots; ++i) barrier_init(&s.slot_full[i], 4), barrier_init(&s.slot_empty[i], SharedMemory::kKeepers);
    for (int i = 0; i < 2; ++i) barrier_init(&s.task_full[i], 1), barrier_init(&s.task_empty[i], 15);
    barrier_init(&s.q_full, 1);
    barrier_init(&s.q_empty, 2);
    fence_to_async();
  }
  for (int q = threadIdx.x; q < SharedMemory::kQueries; q += kThreads) {
    s.progress[0][q] = s.progress[1][q] = 0;
    s.tail[q] = s.head[q] = s.finished[q] = 0;
  }
  __syncthreads();
  if (threadIdx.x < 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
    if (threadIdx.x < 32)
      Loader<kHeads, kDims, kWeighted>{s, p, &q_map, &key_map}.run();
    else if (threadIdx.x < 32 + 32 * SharedMemory::kKeepers)
      Keeper<kHeads, kDims>{s, p}.run();
    else
      Selector<kHeads, kDims>{s, p}.run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kScorerRegisters));
    Scorer<kHeads, kDims, kWeighted>{s}.run();
  }
}

// Boxes of four queries: dimensions, odd or even head, query, pair of heads.
CUtensorMap map_of_queries(const Tensor& q) {
  const auto queries = static_cast<cuuint64_t>(q.size(0)), heads = static_cast<cuuint64_t>(q.size(1)), dims = static_cast<cuuint64_t>(q.size(2));
  const cuuint64_t sizes[] = {dims, 2, queries, heads / 2}, steps[] = {dims * 2, heads * dims * 2, dims * 4};
  const cuuint32_t box[] = {64, 2, 4, static_cast<cuuint32_t>(heads / 2)};
  return make_tensor_map(q.raw(), 4, sizes, steps, box);
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
  const CUtensorMap q_map = map_of_queries(u.q), key_map = map_of_rows(u.keys.raw(), u.keys.size(0), u.keys.size(1), u.keys.stride(0), kKeyTile);
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
  p.ring = topk::ring_entries(s.k);
  p.list_entries = topk::list_entries(s.k);
  p.select_at = topk::select_at(s.k);
  p.state_scores = s.scores.f32();
  p.state_indices = s.indices.i32();
  p.state_counts = s.counts.i32();
  p.nan_query = s.nan_query.i32();
  p.next_task = workspace.take<int32_t>(1);
  p.lists = workspace.take<Candidate>(topk::list_bytes(u, s.k) / int64_t{sizeof(Candidate)});
  if (!topk::has_tensor_core_form(u)) return flash_topk_update_plain_cuda(s, u, p.lists);
  HYSCALE_CHECK(u.keys.stride(0) % 8 == 0 && reinterpret_cast<uintptr_t>(u.keys.raw()) % 16 == 0, "keys ", to_string(u.keys), " with rows of ", u.keys.stride(0),
                " elements: rows start at multiples of 16 bytes");
  check_cuda(cudaMemsetAsync(p.next_task, 0, sizeof(int32_t), stream_of(u.stream)), "flash_topk");
  launch_shape(u, p);
}

}  // namespace hyscale
