// The scorers of a FlashTopK block (flash_topk.cu).
#pragma once
#include "kernels/flash_topk/block.cuh"

namespace hyscale::topk {

__device__ __forceinline__ void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// Stays where it is written: ptxas moves other loads down among the sums, which then wait for them.
__device__ __forceinline__ float load_early(const float* from) {
  float x;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
  return x;
}
// max(x, 0) that keeps NaN.
__device__ __forceinline__ float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// For the odd heads of e4m3, whose products are half as long: twice relu, on the pipe that has room; it keeps NaN, and sums of e4m3
// products are finite.
template <typename Form>
__device__ __forceinline__ float odd_relu(float x) { return Form::kScaled ? x + fabsf(x) : relu(x); }

// Warpgroups take turns: one multiplies while the other adds up heads. Where half of the columns holds one query of a thread, a
// group takes one half for both sets of 64 keys of a tile, and the weights of that query stay in registers; else it takes 64 keys for
// both halves. Products from shared memory take three quarters of what it delivers; weights that are read anew compete for the rest.
template <typename Form>
struct Scorer {
  using SharedMemory = Shared<Form>;
  static constexpr int kQueries = Form::kQueries, kPerRow = kQueries / 4;  // queries of a thread, for each of its two rows
  static constexpr int kHeads = Form::kHeads;
  static constexpr bool kByColumns = Form::kByColumns;
  using Weights = float4[kByColumns ? kHeads / 4 : 1];
  using Sums = float[kPerRow][2][2];  // of a thread's queries, rows, even and odd heads
  SharedMemory& s;
  const Problem& p;
  const int group = __shfl_sync(~0u, threadIdx.x / 128 - 2, 0);  // known to be the same for a warp

  __device__ __forceinline__ void run() {
    Turn<Form::kStages> stage;
    Turn<Form::kSlots> slot;
    if (!kByColumns) slot.at = group;
    if (group == 1) named_arrive(1, 256);
#pragma unroll 1
    for (uint32_t number = 0;; ++number) {
      barrier_wait(&s.task_full[number & 1], number >> 1 & 1);
      const auto& task = s.tasks[number & 1];
      const int num_tiles = task.num_tiles;
      if (num_tiles < 0) break;
      Weights weights;
#pragma unroll
      for (int h = 0; h < (kByColumns ? kHeads : 0); h += 4) weights[h / 4] = load_weights(task, group, h);
      barrier_wait(&s.q_full, number & 1);
#pragma unroll 1
      for (int i = 0; i < num_tiles; ++i) {
        score(task, weights, stage, slot, i == num_tiles - 1);
        stage.advance(1);
        slot.advance(2);
      }
      if (lane_id() == 0) barrier_arrive(&s.task_empty[number & 1]);
    }
    if (group == 0) named_sync(1, 256);
  }
  // Two products: the first one's heads are added while the second is multiplied.
  __device__ __forceinline__ void score(const Task<Form>& task, const Weights& weights, const Turn<Form::kStages>& stage, const Turn<Form::kSlots>& slot, bool last) {
    float d[2][64];
    Sums sums;
    barrier_wait(&s.full[stage.at], stage.parity);
    const float scale = load_scale(s.first_keys[stage.at]);
    named_sync(1 + group, 256);  // this group's turn
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      kByColumns ? multiply(d[i], stage, i, group) : multiply(d[i], stage, group, i);
      wgmma_commit();
    }
    named_arrive(1 + (1 - group), 256);
    wgmma_wait<1>();
    pin(d[0]);
    add_heads(d[0], task, weights, 0, sums);
    if (kByColumns) {
      barrier_wait(&s.slot_empty[slot.at], slot.parity ^ 1);
      put_scores(sums, scale, 0, slot.at);
    }
    wgmma_wait<0>();
    pin(d[1]);
    if (threadIdx.x % 128 == 0) {
      barrier_arrive(&s.empty[stage.at]);
      if (last) barrier_arrive(&s.q_empty);
    }
    add_heads(d[1], task, weights, 1, sums);
    if (!kByColumns) barrier_wait(&s.slot_empty[slot.at], slot.parity ^ 1);
    put_scores(sums, scale, kByColumns, slot.at + kByColumns);
    __syncwarp();
    if (lane_id() == 0) barrier_arrive(&s.slot_full[slot.at]);
  }
  __device__ __forceinline__ void multiply(float (&d)[64], const Turn<Form::kStages>& stage, int keys, int half) {
#pragma unroll
    for (int step = 0; step < Form::kRowBytes / 32; ++step) {
      const uint64_t a = descriptor(s.keys[stage.at][step / 4] + keys * kTileBytes, step % 4), b = descriptor(s.q[step / 4] + half * 2 * kTileBytes, step % 4);
      if constexpr (Form::kScaled)
        step == 0 ? wgmma_n128_e4m3_first(d, a, b) : wgmma_n128_e4m3(d, a, b);
      else
        step == 0 ? wgmma_n128_first(d, a, b) : wgmma_n128<0, 0>(d, a, b, 1);
    }
  }
  // row_descriptor of a tile at 32 bytes `step` of its rows, by sums of 32 bits: they stay in uniform registers.
  static __device__ __forceinline__ uint64_t descriptor(const uint8_t* tile, int step) { return uint64_t{1} << 62 | uint64_t{64} << 32 | ((shared_address(tile) >> 4) + (1u << 16) + static_cast<uint32_t>(2 * step)); }
  // One of the warp's up to 32 keys for each lane: those of the first set of 64 keys, then those of the second.
  __device__ __forceinline__ float load_scale(int first_key) const {
    if (!Form::kScaled) return 1;
    const int set = kByColumns ? lane_id() / 16 : group;
    return load_early(p.key_scales + min(first_key + set * kSlotKeys + threadIdx.x % 128 / 32 * 16 + lane_id() % 16, static_cast<int>(p.num_keys) - 1));
  }
  // Of four heads of one of the thread's queries.
  static __device__ __forceinline__ float4 load_weights(const Task<Form>& task, int q, int h) {
    if constexpr (Form::kWeighted)
      return *reinterpret_cast<const float4*>(&task.weights[4 * q + threadIdx.x % 4][h]);
    else
      return make_float4(1, 1, 1, 1);
  }
  // d: a thread's products of its two rows with half of the columns, pairs of heads by row.
  __device__ __forceinline__ void add_heads(const float (&d)[64], const Task<Form>& task, const Weights& weights, int half, Sums& sums) {
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      const int q = kByColumns ? 0 : (half * 32 + i) / kHeads, h = (half * 32 + i) % kHeads;
      const float4 w = kByColumns ? weights[h / 4] : load_weights(task, q, h);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        auto& sum = sums[q][r];
        const int at = i * 2 + 2 * r;
        sum[0] = h == 0 ? relu(d[at]) * w.x : fmaf(relu(d[at]), w.x, sum[0]);
        sum[1] = h == 0 ? odd_relu<Form>(d[at + 1]) * w.y : fmaf(odd_relu<Form>(d[at + 1]), w.y, sum[1]);
        sum[0] = fmaf(relu(d[at + 4]), w.z, sum[0]);
        sum[1] = fmaf(odd_relu<Form>(d[at + 5]), w.w, sum[1]);
      }
    }
  }
  __device__ __forceinline__ void put_scores(const Sums& sums, float scale, int set, int slot) {
    float scales[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) scales[r] = Form::kScaled ? __shfl_sync(~0u, scale, 16 * set + 8 * r + lane_id() / 4) : 1;
    const int first = kByColumns ? group : 0;
#pragma unroll
    for (int q = 0; q < (kByColumns ? 1 : kPerRow); ++q)
#pragma unroll
      for (int r = 0; r < 2; ++r) s.slots[slot][4 * (first + q) + threadIdx.x % 4][row() + 8 * r] = fmaf(fmaf(sums[q][r][1], Form::kScaled ? 0.5f : 1.0f, sums[q][r][0]), scales[r], 0.0f);  // never -0
  }
  static __device__ __forceinline__ int row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
};

}  // namespace hyscale::topk
