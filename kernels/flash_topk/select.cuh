// Exact selection among a query's candidates by one warp: the k best by score descending, then index ascending.
//
// A candidate's rank is one 64-bit number: the score as an ordered integer above, the complement of the index below; all
// ranks differ, so the k-th is well defined and ties need no second look. Two passes suffice as a rule: a histogram linear
// in the score's value over a window guessed from a sample (digits of floats would fall into two or three bins, whose
// counters serialise), then one that keeps the bins above the k-th's and settles that bin in shared memory. Where its bin
// holds too many (ties, outliers, infinities), the range of ranks that can hold the k-th is cut until one is left.
//
// A List has `float score(int i)`, `Candidate at(int i)` and `put(int place, Candidate)`, where put(i) may overwrite at(i).
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace hyscale::topk {

struct __align__(8) Candidate {
  float score;
  int32_t index;
};

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
__device__ __forceinline__ Candidate candidate_of(uint64_t rank) { return {score_of(rank), index_of(rank)}; }

__device__ __forceinline__ uint64_t warp_min(uint64_t x) {
  for (int step = 16; step > 0; step /= 2) x = min(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ __forceinline__ uint64_t warp_max(uint64_t x) {
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

constexpr int kFewRanks = 128;  // of one bin, settled in shared memory

struct Scratch {  // of one warp
  uint32_t histogram[256];
  uint64_t ranks[kFewRanks];
};

// Calls f(candidate) for the candidates of this lane, eight loads in flight.
template <typename List, typename Function>
__device__ __forceinline__ void for_each_candidate(const List& list, int count, int lane, Function f) {
#pragma unroll 1
  for (int first = 0; first < count; first += 32 * 8) {
    Candidate c[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int i = first + j * 32 + lane;
      if (i < count) c[j] = list.at(i);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j)
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

// Rank of the k-th best of `count` > k candidates, by cuts of the range that holds it.
template <typename List>
__device__ __forceinline__ uint64_t kth_rank_by_cuts(const List& list, int count, int k, uint32_t* histogram, int lane) {
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

// Moves the candidates for which better(candidate) holds to the front of the list, from `kept` on. Returns their number.
template <typename List, typename Better>
__device__ __forceinline__ int move_to_front(const List& list, int count, int lane, Better better) {
  int kept = 0;
#pragma unroll 1
  for (int first = 0; first < count; first += 32 * 8) {
    Candidate c[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int i = first + j * 32 + lane;
      if (i < count) c[j] = list.at(i);
    }
    __syncwarp();  // all of the piece is read before its front is written
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const bool take = first + j * 32 + lane < count && better(c[j]);
      const uint32_t takers = __ballot_sync(~0u, take);
      if (take) list.put(kept + __popc(takers & ((1u << lane) - 1)), c[j]);
      kept += __popc(takers);
    }
    __syncwarp();
  }
  return kept;
}

// Bins linear in the score's value; what lies outside the window falls into the first and the last.
struct ValueBins {
  float low, scale;
  __device__ int operator()(float score) const { return max(0, min(255, static_cast<int>((score - low) * scale))); }
};

// A window that is likely to hold the k-th best: from the known floor, or the least of a sample, to four times the
// sample's mean above it, since few candidates lie beyond (Markov) and outliers must not widen the bins.
template <typename List>
__device__ __forceinline__ ValueBins guess_bins(const List& list, int count, float floor, int lane) {
  constexpr int kSamples = 16;
  float sample[kSamples];
#pragma unroll
  for (int j = 0; j < kSamples; ++j) sample[j] = list.score(min(count - 1, static_cast<int>(static_cast<int64_t>(max(0, count - 32)) * j / (kSamples - 1)) + lane));
  float least = INFINITY, most = -INFINITY, sum = 0;
#pragma unroll
  for (int j = 0; j < kSamples; ++j) least = fminf(least, sample[j]), most = fmaxf(most, sample[j]), sum += sample[j] * (1.0f / (32 * kSamples));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    least = fminf(least, __shfl_xor_sync(~0u, least, step));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    sum += __shfl_xor_sync(~0u, sum, step);
  }
  const float low = fmaxf(least, floor), width = fminf(most - low, 4 * (sum - low));
  return {low, width > 0 && width < 1e38f ? 255.999f / width : INFINITY};
}

// Cuts a list of `count` > k candidates to its k best, moved to the front in any order; returns the rank of the k-th.
// floor: a score that the k-th is known to reach, or -inf. told(score): the k-th reaches this too, told early.
template <typename List, typename Tell>
__device__ __forceinline__ uint64_t keep_best(const List& list, int count, int k, float floor, Scratch& scratch, int lane, Tell tell) {
  uint32_t* histogram = scratch.histogram;
  const ValueBins bins = guess_bins(list, count, floor, lane);
  int bin = 0, members = kFewRanks + 1;
  uint32_t need = static_cast<uint32_t>(k);
  if (bins.scale < 1e38f) {
    for (int i = lane; i < 256; i += 32) histogram[i] = 0;
    __syncwarp();
#pragma unroll 1
    for (int first = 0; first < count; first += 32 * 16) {
      float score[16];
#pragma unroll
      for (int j = 0; j < 16; ++j)
        if (first + j * 32 + lane < count) score[j] = list.score(first + j * 32 + lane);
#pragma unroll
      for (int j = 0; j < 16; ++j)
        if (first + j * 32 + lane < count) atomicAdd(histogram + bins(score[j]), 1u);
    }
    __syncwarp();
    bin = find_bin(histogram, need, lane);
    members = static_cast<int>(histogram[bin]);
    const float edge = bins.low + (static_cast<float>(bin) - 0.01f) / bins.scale;
    if (bin > 0 && bins(edge) < bin) tell(edge);
  }
  __syncwarp();
  if (members > kFewRanks) {
    const uint64_t kth = kth_rank_by_cuts(list, count, k, histogram, lane);
    move_to_front(list, count, lane, [&](Candidate c) { return rank_of(c) >= kth; });
    return kth;
  }
  if (lane == 0) histogram[0] = 0;
  __syncwarp();
  const int above = move_to_front(list, count, lane, [&](Candidate c) {
    const int at = bins(c.score);
    if (at == bin) scratch.ranks[atomicAdd(histogram, 1u)] = rank_of(c);
    return at > bin;
  });
  const uint64_t kth = pick_rank(scratch.ranks, members, need, lane);
  int kept = above;
#pragma unroll 1
  for (int first = 0; first < members; first += 32) {
    const uint64_t rank = first + lane < members ? scratch.ranks[first + lane] : 0;
    const uint32_t takers = __ballot_sync(~0u, rank >= kth);
    if (rank >= kth) list.put(kept + __popc(takers & ((1u << lane) - 1)), candidate_of(rank));
    kept += __popc(takers);
  }
  __syncwarp();
  return kth;
}

}  // namespace hyscale::topk
