// What the warps of a FlashTopK block share (flash_topk.cu): its form, its memory, and the words by which they tell each other how far they are.
#pragma once
#include "kernels/common/e4m3.cuh"
#include "kernels/common/hopper.cuh"
#include "kernels/common/tensor_map.cuh"
#include "kernels/flash_topk/flash_topk_cuda.h"
#include "kernels/flash_topk/select.cuh"

namespace hyscale::topk {

using namespace hopper;

constexpr int kSlotKeys = kKeyTile / 2, kSlotStride = kSlotKeys + 8;  // the pad spreads a quad's four queries over the banks

// Number: bf16, or e4m3 with scales.
template <typename Number, int heads, int dims, bool weighted>
struct Form {
  static constexpr int kHeads = heads, kRowBytes = dims * static_cast<int>(sizeof(Number)), kQueries = kColumns / kHeads;
  static constexpr int kBoxes = kRowBytes / 128;  // of 128 bytes side by side: tiles of matrix products
  static constexpr bool kScaled = sizeof(Number) == 1, kWeighted = weighted || kScaled;
  static constexpr int kStages = kScaled ? 6 : kBoxes == 1 ? 4 : kQueries == 64 ? 2 : 3, kSlots = kScaled ? 12 : kQueries == 64 ? 3 : 6;
  // The faster the scores come, the more warps share in keeping up with them.
  static constexpr int kQueriesAtOnce = kScaled || kHeads == 32 ? 2 : 4, kKeepers = kQueries <= 16 ? kQueries / kQueriesAtOnce : 4, kSelectors = 7 - kKeepers;
  // Half of the columns is for one scoring warpgroup, and weights stay in its registers (scorer.cuh).
  static constexpr bool kByColumns = kHeads == 32;
  static constexpr int kSlotsTogether = kQueries == 64 ? 1 : 2;      // that a keeper looks at in one go
  static constexpr int kSlotsAtOnce = kByColumns ? 2 : 1;            // that share the barriers of the first of them
  // Per thread, of warps 0 to 3, 4 to 7 and the scorers.
  static constexpr int kFirstRegisters = kByColumns ? 56 : 96, kSecondRegisters = kByColumns ? 104 : 96, kScorerRegisters = 256 - (kFirstRegisters + kSecondRegisters) / 2;
  static_assert(!kByColumns || kKeepers >= 3);  // no selectors among warps 0 to 3
  static_assert(kRowBytes % 128 == 0 && kSlots % kSlotsTogether == 0 && kSlotsTogether % kSlotsAtOnce == 0);
};

template <typename Form>
struct Task {
  static constexpr int kQueries = Form::kQueries;
  int64_t first_query;
  int first_tile, num_tiles;           // no more tasks: num_tiles < 0
  int all_begin, all_end;              // keys that every query with keys sees
  int begin[kQueries], end[kQueries];  // visible keys, relative to the first of this update
  int first_counts[kQueries];          // entries from earlier updates
  alignas(16) float weights[Form::kWeighted ? kQueries : 1][Form::kHeads + 4];
};

template <typename Form>
struct __align__(1024) Shared {
  static constexpr int kQueries = Form::kQueries, kStages = Form::kStages, kSlots = Form::kSlots;
  uint8_t q[Form::kBoxes][kColumns * 128];
  uint8_t keys[kStages][Form::kBoxes][kKeyTile * 128];
  float slots[kSlots][kQueries][kSlotStride];  // scores of 64 keys
  Task<Form> tasks[2];
  Scratch scratch[Form::kSelectors];
  // Tasks alternate between two entries where a keeper may be a task ahead of a selector.
  uint64_t threshold[2][kQueries];  // what scores have to beat; selectors raise it
  uint64_t progress[2][kQueries];   // task number + 1, whether all has come (a bit), tail of the ring; keepers write
  int first_keys[kStages];          // of the tiles there
  uint32_t tail[kQueries];          // entries that ever came into the ring; keepers' own
  uint32_t head[kQueries];          // entries that ever left it; selectors write
  uint32_t finished[kQueries];      // tasks whose list is settled; selectors write
  uint64_t full[kStages], empty[kStages], q_full, q_empty, slot_full[kSlots], slot_empty[kSlots], task_full[2], task_empty[2];
};

struct Problem {
  const float *weights, *q_scales;  // [T, H] or null
  const float* key_scales;          // [n] or null
  const int32_t *begin, *end;
  int64_t queries, num_keys, first_key;
  int k, ring, select_at;  // entries of a ring: a power of two; entries beyond k that make a selection worthwhile
  float* state_scores;
  int32_t *state_indices, *state_counts, *nan_query;
  Candidate* lists;  // [blocks][queries of a block][list_entries]: kept ones, ring
  int64_t list_entries;
  int32_t* next_task;
};

__device__ __forceinline__ int lane_id() { return threadIdx.x % 32; }

// Words of shared memory; what was written before is visible with them.
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

// The tiles of a task in the order in which they are scored: bits of the number reversed. Scores that rise with the index would
// otherwise all be appended; in this order few sequences are worse than a random one, and all tasks of a length visit the same tiles.
struct Tiles {
  uint32_t count, shift, number = 0;
  __device__ __forceinline__ explicit Tiles(int tiles) : count(static_cast<uint32_t>(tiles)), shift(std::countl_zero(static_cast<uint32_t>(max(tiles - 1, 1)))) {}
  __device__ __forceinline__ int next() {
    uint32_t tile;
    do tile = __brev(number++) >> shift;
    while (tile >= count);
    return static_cast<int>(tile);
  }
};

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

}  // namespace hyscale::topk
