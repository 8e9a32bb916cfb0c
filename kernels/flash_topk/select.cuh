// Exact selection among a query's candidates by one warp: the k best by score descending, then index ascending.
//
// A candidate's rank is one 64-bit number: the score as an ordered integer above, the complement of the index below; all
// ranks differ, so the k-th is well defined and ties need no second look. The range of ranks that can hold the k-th is cut
// by 256-bin histograms. The first cuts are linear in the score's value: digits of floats fall into two or three bins and
// their counters serialise. What they leave (ties, infinities) is cut linearly in the rank, which always ends.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace hyscale::topk {

struct __align__(8) Candidate {
  float score;
  int32_t index;
};

__device__ __forceinline__ Candidate load_candidate(const Candidate* p) {
  const float2 v = __ldcg(reinterpret_cast<const float2*>(p));
  return {v.x, __float_as_int(v.y)};
}
__device__ __forceinline__ void store_candidate(Candidate* p, Candidate c) { __stcg(reinterpret_cast<float2*>(p), make_float2(c.score, __int_as_float(c.index))); }

__device__ __forceinline__ uint64_t rank_of(Candidate c) {
  const uint32_t bits = __float_as_uint(c.score);
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | ~static_cast<uint32_t>(c.index);
}
__device__ __forceinline__ float score_of(uint64_t rank) {
  const uint32_t ordered = static_cast<uint32_t>(rank >> 32);
  return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}
__device__ __forceinline__ int32_t index_of(uint64_t rank) { return static_cast<int32_t>(~static_cast<uint32_t>(rank)); }

__device__ __forceinline__ uint64_t warp_min(uint64_t x) {
  for (int step = 16; step > 0; step /= 2) x = min(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ __forceinline__ uint64_t warp_max(uint64_t x) {
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

constexpr int kUnroll = 16;
constexpr int kFewRanks = 192;  // of one bin, settled in shared memory

// Calls f(candidate) for the candidates of this lane, kUnroll loads in flight.
template <typename Function>
__device__ __forceinline__ void for_each_candidate(const Candidate* list, int count, int lane, Function f) {
#pragma unroll 1
  for (int first = 0; first < count; first += 32 * kUnroll) {
    Candidate c[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const int i = first + j * 32 + lane;
      if (i < count) c[j] = load_candidate(list + i);
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j)
      if (first + j * 32 + lane < count) f(c[j]);
  }
}

// Where a candidate falls between the bounds of a cut.
struct Bins {
  uint64_t low, high;
  bool by_value;
  float low_score, scale;
  int shift;
  __device__ Bins(uint64_t l, uint64_t h, bool value_allowed) : low(l), high(h) {
    low_score = score_of(l);
    const float width = score_of(h) - low_score;
    by_value = value_allowed && width > 0 && width < 1e38f;
    scale = 255.999f / width;
    by_value = by_value && scale < 1e38f;
    const int bits = 64 - __clzll(static_cast<long long>(h - l));
    shift = max(0, bits - 8);
  }
  __device__ bool holds(uint64_t rank) const { return rank >= low && rank <= high; }
  __device__ int of(Candidate c, uint64_t rank) const {
    return by_value ? min(255, static_cast<int>((c.score - low_score) * scale)) : static_cast<int>((rank - low) >> shift);
  }
};

// The bin, counted from the highest, in which the need-th best lies; `need` becomes its place inside the bin.
__device__ __forceinline__ int find_bin(const uint32_t* histogram, uint32_t& need, int lane) {
  uint32_t mine = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) mine += histogram[255 - 8 * lane - j];
  uint32_t upto = mine;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += other;
  }
  uint32_t before = upto - mine;
  int bin = -1;
  if (before < need && upto >= need)
    for (int j = 0; j < 8; ++j) {
      const uint32_t here = histogram[255 - 8 * lane - j];
      if (before + here >= need) {
        bin = 255 - 8 * lane - j;
        break;
      }
      before += here;
    }
  const int owner = __ffs(__ballot_sync(~0u, bin >= 0)) - 1;
  need -= __shfl_sync(~0u, before, owner);
  return __shfl_sync(~0u, bin, owner);
}

// The need-th largest of `count` different ranks, at most kFewRanks: the one that need - 1 others exceed.
__device__ __forceinline__ uint64_t pick_rank(const uint64_t* ranks, int count, uint32_t need, int lane) {
  constexpr int kEach = kFewRanks / 32;
  uint64_t mine[kEach];
  uint32_t above[kEach] = {};
#pragma unroll
  for (int j = 0; j < kEach; ++j) mine[j] = j * 32 + lane < count ? ranks[j * 32 + lane] : 0;
#pragma unroll 2
  for (int i = 0; i < count; ++i) {
    const uint64_t other = ranks[i];
#pragma unroll
    for (int j = 0; j < kEach; ++j) above[j] += other > mine[j];
  }
  uint64_t found = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    if (j * 32 + lane < count && above[j] == need - 1) found = mine[j];
  return warp_max(found);
}

// kth_rank in three passes where one cut by value leaves few candidates; 0 where it does not (ties, infinities).
__device__ __forceinline__ uint64_t kth_rank_by_value(const Candidate* list, int count, int k, uint32_t* histogram, uint64_t* ranks, int lane) {
  float low = INFINITY, high = -INFINITY;
  for_each_candidate(list, count, lane, [&](Candidate c) { low = fminf(low, c.score), high = fmaxf(high, c.score); });
#pragma unroll
  for (int step = 16; step > 0; step /= 2) low = fminf(low, __shfl_xor_sync(~0u, low, step)), high = fmaxf(high, __shfl_xor_sync(~0u, high, step));
  const float scale = 255.999f / (high - low);
  if (!(high - low < 1e38f) || !(scale < 1e38f)) return 0;
  for (int i = lane; i < 256; i += 32) histogram[i] = 0;
  __syncwarp();
  for_each_candidate(list, count, lane, [&](Candidate c) { atomicAdd(histogram + min(255, static_cast<int>((c.score - low) * scale)), 1u); });
  __syncwarp();
  uint32_t need = static_cast<uint32_t>(k);
  const int bin = find_bin(histogram, need, lane), members = static_cast<int>(histogram[bin]);
  if (members > kFewRanks) return 0;
  __syncwarp();
  if (lane == 0) histogram[0] = 0;
  __syncwarp();
  for_each_candidate(list, count, lane, [&](Candidate c) {
    if (min(255, static_cast<int>((c.score - low) * scale)) == bin) ranks[atomicAdd(histogram, 1u)] = rank_of(c);
  });
  __syncwarp();
  return pick_rank(ranks, members, need, lane);
}

// Rank of the k-th best of `count` > k candidates. histogram: 256 counters, ranks: kFewRanks places, of this warp.
__device__ __forceinline__ uint64_t kth_rank(const Candidate* list, int count, int k, uint32_t* histogram, uint64_t* ranks, int lane) {
  __syncwarp();
  if (const uint64_t found = kth_rank_by_value(list, count, k, histogram, ranks, lane)) return found;
  uint64_t low = ~uint64_t{0}, high = 0;
  for_each_candidate(list, count, lane, [&](Candidate c) {
    const uint64_t rank = rank_of(c);
    low = min(low, rank);
    high = max(high, rank);
  });
  low = warp_min(low);
  high = warp_max(high);
  uint32_t need = static_cast<uint32_t>(k);
#pragma unroll 1
  for (int cut = 0; low < high; ++cut) {
    const Bins bins(low, high, cut < 3);
    __syncwarp();
    for (int i = lane; i < 256; i += 32) histogram[i] = 0;
    __syncwarp();
    for_each_candidate(list, count, lane, [&](Candidate c) {
      const uint64_t rank = rank_of(c);
      if (bins.holds(rank)) atomicAdd(histogram + bins.of(c, rank), 1u);
    });
    __syncwarp();
    const int bin = find_bin(histogram, need, lane);
    uint64_t next_low = ~uint64_t{0}, next_high = 0;
    for_each_candidate(list, count, lane, [&](Candidate c) {
      const uint64_t rank = rank_of(c);
      if (!bins.holds(rank) || bins.of(c, rank) != bin) return;
      next_low = min(next_low, rank);
      next_high = max(next_high, rank);
    });
    low = warp_min(next_low);
    high = warp_max(next_high);
  }
  return low;
}

// Calls store(place, candidate) for the candidates of rank >= kth, places ascending in the list's order; a store may write
// to the list itself.
template <typename Store>
__device__ __forceinline__ void for_each_best(const Candidate* list, int count, uint64_t kth, int lane, Store store) {
  int kept = 0;
#pragma unroll 1
  for (int first = 0; first < count; first += 32 * 8) {
    Candidate c[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int i = first + j * 32 + lane;
      if (i < count) c[j] = load_candidate(list + i);
    }
    __syncwarp();  // all of the piece is read before its front is written
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const bool take = first + j * 32 + lane < count && rank_of(c[j]) >= kth;
      const uint32_t takers = __ballot_sync(~0u, take);
      if (take) store(kept + __popc(takers & ((1u << lane) - 1)), c[j]);
      kept += __popc(takers);
    }
    __syncwarp();
  }
}

}  // namespace hyscale::topk
