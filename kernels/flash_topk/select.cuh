// Selection among a query's candidates by one warp: the k best by score descending, then index ascending.
//
// A candidate's rank is one 64-bit number: the score as an ordered integer above, the complement of the index below; all
// ranks differ, so the k-th is well defined and ties need no second look. Two passes suffice as a rule: a histogram linear
// in the score's value over a window guessed from a sample (digits of floats would fall into two or three bins, whose
// counters serialise), then one that keeps the bins from the k-th's up. While more candidates are to come, the whole bin
// stays; at the end it is settled in shared memory. Where it holds too many (ties, outliers, infinities), the range of
// ranks that can hold the k-th is cut until few are left.
//
// A warp works alone, so candidates come through shared memory, two chunks ahead, and few instructions see each of them.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/hopper.cuh"
#include "kernels/flash_topk/flash_topk_cuda.h"

namespace hyscale::topk {

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

__device__ __forceinline__ Candidate load_candidate(const Candidate* p) {
  const float2 v = __ldcg(reinterpret_cast<const float2*>(p));
  return {v.x, __float_as_int(v.y)};
}
__device__ __forceinline__ void store_candidate(Candidate* p, Candidate c) { __stcg(reinterpret_cast<float2*>(p), make_float2(c.score, __int_as_float(c.index))); }

// What must be beaten: a score, and among equals an index. One word, so that it is read and written whole.
__device__ __forceinline__ uint64_t make_threshold(float score, int32_t index) { return static_cast<uint64_t>(static_cast<uint32_t>(index)) << 32 | __float_as_uint(score); }
__device__ __forceinline__ float threshold_score(uint64_t t) { return __uint_as_float(static_cast<uint32_t>(t)); }
__device__ __forceinline__ int32_t threshold_index(uint64_t t) { return static_cast<int32_t>(t >> 32); }
constexpr uint64_t kNoThreshold = uint64_t{INT32_MAX} << 32 | 0xff800000u;  // -inf, any index
constexpr uint64_t kClosed = uint64_t{0x80000000u} << 32 | 0x7f800000u;      // inf, no index

constexpr int kChunk = 256, kChunks = 3;  // candidates of a chunk; chunks on their way or in use
constexpr int kEach = kChunk / 32;        // candidates of a lane, in pairs of neighbours

struct Scratch {  // of one warp
  alignas(16) Candidate staged[kChunks][kChunk];
  uint32_t histogram[256 + 2];  // one for what does not count
  uint64_t ranks[kFewRanks];
  uint32_t kept, members;
};

// A query's candidates: those kept by the last selection (with room for k + kFewRanks), then `waiting` entries of a ring.
// Both arrays start at multiples of 16 bytes.
struct List {
  Candidate* kept;
  int num_kept;
  Candidate* ring;
  uint32_t mask, head;  // entries of the ring - 1; its first waiting one
  int waiting;

  struct Chunk {
    const Candidate* from;
    int begin, end;  // places that hold candidates of the list
  };
  __device__ __forceinline__ int size() const { return num_kept + waiting; }
  __device__ __forceinline__ Candidate at(int i) const { return load_candidate(i < num_kept ? kept + i : ring + (head + i - num_kept & mask)); }
  __device__ __forceinline__ int upto_wrap() const { return min(waiting, static_cast<int>(mask + 1 - (head & mask))); }
  __device__ __forceinline__ int kept_chunks() const { return (num_kept + kChunk - 1) / kChunk; }
  __device__ __forceinline__ int wrap_chunks() const { return (upto_wrap() + static_cast<int>(head & 1) + kChunk - 1) / kChunk; }
  __device__ __forceinline__ int num_chunks() const { return kept_chunks() + wrap_chunks() + (waiting - upto_wrap() + kChunk - 1) / kChunk; }
  __device__ __forceinline__ Chunk chunk(int i) const {
    if (i < kept_chunks()) return {kept + i * kChunk, 0, num_kept - i * kChunk};
    i -= kept_chunks();
    const int odd = static_cast<int>(head & 1);
    if (i < wrap_chunks()) return {ring + (head & mask) - odd + i * kChunk, i == 0 ? odd : 0, upto_wrap() + odd - i * kChunk};
    i -= wrap_chunks();
    return {ring + i * kChunk, 0, waiting - upto_wrap() - i * kChunk};
  }
  static __device__ __forceinline__ int place(int j, int lane) { return (j / 2 * 32 + lane) * 2 + j % 2; }
  // Calls f(candidates, valid, place of the first in its chunk's array) for this lane's candidates of every chunk, in order.
  // What f writes to kept[i] must leave alone what comes after the chunk.
  template <typename Function>
  __device__ __forceinline__ void for_each_chunk(Scratch& scratch, int lane, Function f) const {
    const int chunks = num_chunks();
    const auto fetch = [&](int i, int stage) {
      Chunk c{};
      if (i < chunks) {
        c = chunk(i);
#pragma unroll
        for (int j = 0; j < kEach; j += 2)
          if (place(j, lane) < c.end) hopper::copy16(hopper::shared_address(scratch.staged[stage] + place(j, lane)), c.from + place(j, lane), true);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
      return c;
    };
    Chunk now = fetch(0, 0), next = fetch(1, 1);
    int stage = 0;
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      const Chunk after = fetch(i + 2, stage == 0 ? 2 : stage - 1);
      asm volatile("cp.async.wait_group 2;" ::: "memory");  // lanes read what they fetched themselves
      Candidate c[kEach];
#pragma unroll
      for (int j = 0; j < kEach; j += 2) {
        const float4 two = *reinterpret_cast<const float4*>(scratch.staged[stage] + place(j, lane));
        c[j] = {two.x, __float_as_int(two.y)};
        c[j + 1] = {two.z, __float_as_int(two.w)};
      }
      uint32_t valid = (1u << kEach) - 1;
      if (now.begin > 0 || now.end < kChunk) {
        valid = 0;
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          if (place(j, lane) >= now.begin && place(j, lane) < now.end) valid |= 1u << j;
      }
      f(c, valid, i * kChunk);
      now = next, next = after;
      stage = stage == kChunks - 1 ? 0 : stage + 1;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
  template <typename Function>
  __device__ __forceinline__ void for_each(Scratch& scratch, int lane, Function f) const {
    for_each_chunk(scratch, lane, [&](const Candidate(&c)[kEach], uint32_t valid, int) {
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (valid >> j & 1) f(c[j]);
    });
  }
};

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
  constexpr int kMine = kFewRanks / 32;
  uint64_t mine[kMine];
  uint32_t above[kMine] = {};
#pragma unroll
  for (int j = 0; j < kMine; ++j) mine[j] = j * 32 + lane < count ? ranks[j * 32 + lane] : 0;
#pragma unroll 2
  for (int i = 0; i < count; ++i) {
    const uint64_t other = ranks[i];
#pragma unroll
    for (int j = 0; j < kMine; ++j) above[j] += other > mine[j];
  }
  uint64_t found = 0;
#pragma unroll
  for (int j = 0; j < kMine; ++j)
    if (j * 32 + lane < count && above[j] == need - 1) found = mine[j];
  return warp_max(found);
}

// Rank of the need-th best of the candidates for which in(candidate) holds, by cuts of the range that holds it; cuts end where at
// most `few` candidates are left, and the rank is that of the last of these.
template <typename In>
__device__ __forceinline__ uint64_t rank_by_cuts(const List& list, In in, uint32_t need, int few, Scratch& scratch, int lane) {
  uint32_t* histogram = scratch.histogram;
  uint64_t low = ~uint64_t{0}, high = 0;
  list.for_each(scratch, lane, [&](Candidate c) {
    if (!in(c)) return;
    const uint64_t rank = rank_of(c);
    low = min(low, rank);
    high = max(high, rank);
  });
  low = warp_min(low);
  high = warp_max(high);
#pragma unroll 1
  for (int cut = 0; low < high; ++cut) {
    const Bins bins(low, high, cut < 3);
    __syncwarp();
    for (int i = lane; i < 256; i += 32) histogram[i] = 0;
    __syncwarp();
    list.for_each(scratch, lane, [&](Candidate c) {
      const uint64_t rank = rank_of(c);
      if (bins.holds(rank)) atomicAdd(histogram + bins.of(c, rank), 1u);
    });
    __syncwarp();
    const int bin = find_bin(histogram, need, lane), members = static_cast<int>(histogram[bin]);
    uint64_t next_low = ~uint64_t{0}, next_high = 0;
    list.for_each(scratch, lane, [&](Candidate c) {
      const uint64_t rank = rank_of(c);
      if (!bins.holds(rank) || bins.of(c, rank) != bin) return;
      next_low = min(next_low, rank);
      next_high = max(next_high, rank);
    });
    low = warp_min(next_low);
    high = warp_max(next_high);
    if (members <= few) break;
  }
  return low;
}

// Keeps the candidates for which better(candidate) holds, in any order; also(candidates, valid) sees every chunk's. Returns
// the number kept.
template <typename Better, typename Also>
__device__ __forceinline__ int keep(const List& list, Scratch& scratch, int lane, Better better, Also also) {
  if (lane == 0) scratch.kept = 0;
  __syncwarp();
  list.for_each_chunk(scratch, lane, [&](const Candidate(&c)[kEach], uint32_t valid, int) {
    uint32_t take = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (better(c[j])) take |= 1u << j;
    take &= valid;
    __syncwarp();  // all lanes have read their part: at least as many places are free as are taken here
    Candidate* to = list.kept + (take ? atomicAdd(&scratch.kept, __popc(take)) : 0);
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (take >> j & 1) store_candidate(to++, c[j]);
    also(c, valid);
    __syncwarp();
  });
  return static_cast<int>(scratch.kept);
}
template <typename Better>
__device__ __forceinline__ int keep(const List& list, Scratch& scratch, int lane, Better better) {
  return keep(list, scratch, lane, better, [](const Candidate(&)[kEach], uint32_t) {});
}

// 256 bins linear in the score's value; what lies outside the window falls into the first and the last.
struct ValueBins {
  float low, width, scale, offset;
  __device__ ValueBins(float l, float w) : low(l), width(w), scale(1 / w), offset(-l * scale) {}
  __device__ bool sound() const { return width > 0 && width < 1e37f && scale < 1e37f && fabsf(offset) < 1e37f; }
  // Rises with the score: both roundings do. 2^23 leaves the bin in the low bits.
  __device__ __forceinline__ uint32_t operator()(float score) const { return __float_as_uint(fmaf(__saturatef(fmaf(score, scale, offset)), 255.0f, 8388608.0f)) - 0x4b000000u; }
};

// A window that is likely to hold the k-th best: from the known floor, or the least of a sample, to four times the
// sample's mean above it, since few candidates lie beyond (Markov) and outliers must not widen the bins.
__device__ __forceinline__ ValueBins guess_bins(const List& list, float floor, int lane) {
  constexpr int kSamples = 8;
  const int count = list.size(), step = max(0, count - 32) / (kSamples - 1);
  float least = INFINITY, most = -INFINITY, sum = 0;
#pragma unroll
  for (int j = 0; j < kSamples; ++j) {
    const float sample = list.at(min(count - 1, step * j + lane)).score;
    least = fminf(least, sample), most = fmaxf(most, sample), sum += sample * (1.0f / (32 * kSamples));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    least = fminf(least, __shfl_xor_sync(~0u, least, step));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    sum += __shfl_xor_sync(~0u, sum, step);
  }
  const float low = fmaxf(least, floor);
  return {low, fminf(most - low, 4 * (sum - low))};
}

// Cuts a list of more than k candidates to its k best, or, unless `exactly`, to at most kFewRanks more; they are moved to
// `kept`. threshold: what candidates are known to have to beat; raised, and told as soon as it is. Returns the number kept.
template <typename Tell>
__device__ __forceinline__ int keep_best(const List& list, int k, bool exactly, uint64_t threshold, Scratch& scratch, int lane, Tell tell) {
  uint32_t* histogram = scratch.histogram;
  const ValueBins bins = guess_bins(list, threshold_score(threshold), lane);
  uint32_t bin = 0, need = static_cast<uint32_t>(k);
  int members = 0;
  bool settled = false;  // that the bin is narrow enough
  if (bins.sound()) {
    for (int i = lane; i < 256; i += 32) histogram[i] = 0;
    __syncwarp();
    list.for_each_chunk(scratch, lane, [&](const Candidate(&c)[kEach], uint32_t valid, int) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) atomicAdd(histogram + (valid >> j & 1 ? bins(c[j].score) : 256), 1u);
    });
    __syncwarp();
    bin = static_cast<uint32_t>(find_bin(histogram, need, lane));
    members = static_cast<int>(histogram[bin]);
    // All from this bin up exceed its edge, and they are k or more.
    const float edge = bins.low + (static_cast<float>(bin) - 0.51f) * (1.0f / 255) * bins.width;
    const bool below = bins(edge) < bin;
    settled = members <= kFewRanks && (exactly || below);
    if (below && edge > threshold_score(threshold)) tell(make_threshold(edge, INT32_MAX));
  }
  __syncwarp();
  if (!settled) {
    const bool sound = bins.sound();
    const uint64_t cut = rank_by_cuts(list, [&](Candidate c) { return !sound || bins(c.score) == bin; }, need, exactly ? 1 : kFewRanks, scratch, lane);
    const uint64_t last = max(cut, rank_of({threshold_score(threshold), threshold_index(threshold)}));  // a stale threshold let worse ones in
    tell(make_threshold(score_of(last), index_of(last)));
    return keep(list, scratch, lane, [&](Candidate c) { return rank_of(c) >= last; });
  }
  if (lane == 0) scratch.members = 0;
  const uint32_t from = exactly ? bin + 1 : bin;
  const int above = keep(list, scratch, lane, [&](Candidate c) { return bins(c.score) >= from; }, [&](const Candidate(&c)[kEach], uint32_t valid) {
    if (!exactly) return;
    uint32_t equal = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (bins(c[j].score) == bin) equal |= 1u << j;
    if (equal &= valid; equal == 0) return;
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (equal >> j & 1) scratch.ranks[atomicAdd(&scratch.members, 1u)] = rank_of(c[j]);
  });
  if (!exactly) return above;
  const uint64_t kth = pick_rank(scratch.ranks, members, need, lane);
  int kept = above;
#pragma unroll 1
  for (int first = 0; first < members; first += 32) {
    const uint64_t rank = first + lane < members ? scratch.ranks[first + lane] : 0;
    const uint32_t takers = __ballot_sync(~0u, rank >= kth);
    if (rank >= kth) store_candidate(list.kept + kept + __popc(takers & ((1u << lane) - 1)), {score_of(rank), index_of(rank)});
    kept += __popc(takers);
  }
  __syncwarp();
  return kept;
}

}  // namespace hyscale::topk
