// The selectors of a FlashTopK block (flash_topk.cu).
#pragma once
#include "kernels/flash_topk/block.cuh"

namespace hyscale::topk {

// Cuts lists to their k best. Lanes stand for the queries of the warp.
template <typename Form>
struct Selector {
  using SharedMemory = Shared<Form>;
  static constexpr int kQueries = Form::kQueries, kSelectors = Form::kSelectors;
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
  __device__ __forceinline__ List list_of(int q, int kept, uint32_t head, int waiting) const {
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
      store_candidate(to + i, c);
      worst = min(worst, rank_of(c));
    }
    worst = warp_min(worst);
    if (count == p.k && s.threshold[number & 1][q] != kClosed) tell(q, number, make_threshold(score_of(worst), index_of(worst)));
    __syncwarp();
  }
  // Returns the entries kept; the last selection of a task leaves them in the state.
  __device__ __forceinline__ int select(int q, int64_t first_query, uint32_t number, int kept, uint32_t head, int waiting, bool last) {
    const List list = list_of(q, kept, head, waiting);
    if (kept + waiting > p.k)
      kept = keep_best(list, p.k, last, s.threshold[number & 1][q], s.scratch[warp()], lane_id(), [&](uint64_t threshold) { tell(q, number, threshold); });
    else if (waiting > 0)
      kept = keep(list, s.scratch[warp()], lane_id(), [](Candidate) { return true; });
    const int64_t t = first_query + q;
    if (!last || t >= p.queries) return kept;
    const List best{list.kept, kept, list.ring, list.mask, 0, 0};
    best.for_each_chunk(s.scratch[warp()], lane_id(), [&](const Candidate(&c)[kEach], uint32_t valid, int first) {
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (valid >> j & 1) {
          const int64_t at = t * p.k + first + List::place(j, lane_id());
          p.state_scores[at] = c[j].score;
          p.state_indices[at] = c[j].index;
        }
    });
    if (lane_id() == 0) p.state_counts[t] = kept;
    __syncwarp();
    return kept;
  }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 - 1 - Form::kKeepers; }
};

}  // namespace hyscale::topk
