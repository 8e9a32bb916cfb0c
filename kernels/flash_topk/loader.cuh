// The loader of a FlashTopK block (flash_topk.cu).
#pragma once
#include "kernels/flash_topk/block.cuh"

namespace hyscale::topk {

// All heads of four queries, in the order of columns; 128 bytes of each, counted in elements of two bytes.
__device__ __forceinline__ void load_heads(void* to, const CUtensorMap* map, uint64_t* barrier, int column, int64_t query) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %5, %4, %5}], [%2];" ::"r"(shared_address(to)), "l"(map),
               "r"(shared_address(barrier)), "r"(column), "r"(static_cast<int>(query)), "r"(0)
               : "memory");
}

// Hands the tasks out, longest first, and keeps the stages filled.
template <typename Form>
struct Loader {
  using SharedMemory = Shared<Form>;
  static constexpr int kQueries = Form::kQueries;
  SharedMemory& s;
  const Problem& p;
  const CUtensorMap *q_map, *key_map;

  __device__ __forceinline__ void run() {
    Turn<Form::kStages> stage;
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
  __device__ __forceinline__ void describe(Task<Form>& task, int64_t first_query, uint32_t number) {
    int low = INT32_MAX, high = 0, all_begin = 0, all_end = INT32_MAX;
    for (int q = lane_id(); q < kQueries; q += 32) {
      const int64_t t = first_query + q;
      const bool exists = t < p.queries;
      int begin = exists ? static_cast<int>(max(p.begin[t] - p.first_key, int64_t{0})) : 0, end = exists ? static_cast<int>(min(p.end[t] - p.first_key, p.num_keys)) : 0;
      if (begin >= end) begin = end = 0;
      task.begin[q] = begin;
      task.end[q] = end;
      task.first_counts[q] = exists ? p.state_counts[t] : 0;
      s.threshold[number & 1][q] = begin < end ? kNoThreshold : kClosed;
      if (begin >= end) continue;
      low = min(low, begin), high = max(high, end);
      all_begin = max(all_begin, begin), all_end = min(all_end, end);
    }
    if constexpr (Form::kWeighted)
#pragma unroll 1
      for (int i = lane_id(); i < kColumns; i += 32) task.weights[i / Form::kHeads][i % Form::kHeads] = first_query + i / Form::kHeads < p.queries ? weight(first_query * Form::kHeads + i) : 0;
    low = __reduce_min_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    task.first_query = first_query;
    task.first_tile = high > 0 ? low / kKeyTile : 0;
    task.num_tiles = (high + kKeyTile - 1) / kKeyTile - task.first_tile;
    task.all_begin = __reduce_max_sync(~0u, all_begin);
    task.all_end = __reduce_min_sync(~0u, all_end);
    __syncwarp();
  }
  // relu lets a positive factor through, so the scales of a query's heads are factors of their weights.
  __device__ __forceinline__ float weight(int64_t i) const {
    const float w = p.weights ? p.weights[i] : 1;
    return Form::kScaled ? w * p.q_scales[i] : w;
  }
  // The queries' place is free only when the last task's products are done; until then the first keys are under way.
  __device__ __forceinline__ void load(const Task<Form>& task, uint32_t number, Turn<Form::kStages>& stage) {
    const int num_tiles = task.num_tiles, queries_at = min(num_tiles, Form::kStages - 1);
    Tiles tiles(num_tiles);
#pragma unroll 1
    for (int i = 0;; ++i) {
      if (i == queries_at) load_queries(task.first_query, number);
      if (i == num_tiles) break;
      barrier_wait(&s.empty[stage.at], stage.parity ^ 1);
      const int first_key = (task.first_tile + tiles.next()) * kKeyTile;
      s.first_keys[stage.at] = first_key;
      barrier_expect(&s.full[stage.at], kKeyTile * Form::kRowBytes);
#pragma unroll
      for (int box = 0; box < Form::kBoxes; ++box) load_box(s.keys[stage.at][box], key_map, &s.full[stage.at], box * 64, first_key);
      stage.advance(1);
    }
  }
  __device__ __forceinline__ void load_queries(int64_t first_query, uint32_t number) {
    barrier_wait(&s.q_empty, ~number & 1);
    barrier_expect(&s.q_full, kColumns * Form::kRowBytes);
#pragma unroll 1
    for (int q = 0; q < kQueries; q += 4)
#pragma unroll
      for (int box = 0; box < Form::kBoxes; ++box) load_heads(s.q[box] + q * Form::kHeads * 128, q_map, &s.q_full, box * 64, first_query + q);
  }
};

}  // namespace hyscale::topk
