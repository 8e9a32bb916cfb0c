// Second half of the index loss (index_loss_two_halves.cu): dkeys(row) += sum over queries and heads of G [X > 0] w q, from the G and signs
// that the walks over the queries (query_walk.cuh) left. A block unites what a few neighbouring queries selected, so that a row which
// they share is added to once: the queries' heads are the contraction of a product whose left side, the coefficients, is made in
// registers. What bounds it: 1 KiB of fixed-point sums per united row.
#pragma once
#include "kernels/index_loss/query_walk.cuh"

namespace hyscale::index_halves {

constexpr int kColumns = 128;  // of coefficients: heads of the united queries
constexpr int kWindow = 256;   // ids looked at together, a thread each
constexpr int kRows = 64;      // of a product
constexpr int kNone = INT32_MAX;
constexpr int kUniting = 1;    // barrier

template <int kHeads>
struct UnitedShared {
  static constexpr int kQueries = kColumns / kHeads, kIds = kWindow / kQueries, kParts = kHeads / 32;
  alignas(1024) unsigned char q[kBlocks][kColumns * 128];  // w q of the queries' heads
  alignas(16) int32_t ids[kQueries][kIds];                 // ascending, kNone behind the last
  int16_t places[kQueries][kIds];                          // of united rows
  int32_t rows[kWindow];                                   // united: ids, -1 behind the last
  float gradients[kQueries][kWindow];                      // of united rows, 0 where the query did not select it
  uint32_t signs[kQueries][kParts][kWindow];
  int begins[kQueries], ends[kQueries];  // slots of the segment that are not united yet
  int of_warps[kWindow / 32];            // united rows
};

// How many of ids[0, count), ascending, are below `id`.
__device__ __forceinline__ int below(const int32_t* ids, int count, int32_t id) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ids[middle] < id) low = middle + 1;
    else high = middle;
  }
  return low;
}

template <int kHeads>
__device__ void load_queries(UnitedShared<kHeads>& s, const IndexLossArguments& a, int64_t t, int here, int thread) {
  for (int i = thread; i < kColumns * 16; i += kWindow) {
    const int head = i / 16, piece = i % 16;
    const int64_t at = t * kHeads + head;
    uint4 numbers{};
    if (head < here * kHeads) {
      numbers = reinterpret_cast<const uint4*>(a.q + at * kDims)[piece];
      if (a.weights) {
        const float w = a.weights[at];
        __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&numbers);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float2 x = __bfloat1622float2(pairs[n]);
          pairs[n] = __floats2bfloat162_rn(w * x.x, w * x.y);
        }
      }
    }
    *reinterpret_cast<uint4*>(s.q[piece / 8] + tile_offset(head, piece % 8)) = numbers;
  }
}

// Unites the next ids of the queries: all up to the smallest of the last ids that were looked at, of queries that have more. Returns how
// many rows that makes.
template <int kHeads>
__device__ int unite(UnitedShared<kHeads>& s, const IndexLossArguments& a, const Queries& queries, int64_t t, int thread) {
  constexpr int kQueries = UnitedShared<kHeads>::kQueries, kIds = UnitedShared<kHeads>::kIds, kParts = UnitedShared<kHeads>::kParts;
  const int query = thread / kIds, own = thread % kIds, slot = s.begins[query] + own;
  const int64_t at = (t - queries.first + query) * a.k + slot;
  const int32_t id = slot < s.ends[query] ? a.indices[(t + query) * a.k + slot] : kNone;
  s.ids[query][own] = id;
  s.rows[thread] = -1;
#pragma unroll
  for (int n = 0; n < kQueries; ++n) s.gradients[n][thread] = 0;
  named_sync(kUniting, kWindow);
  int32_t limit = kNone - 1;
#pragma unroll
  for (int n = 0; n < kQueries; ++n)
    if (s.begins[n] + kIds < s.ends[n]) limit = min(limit, s.ids[n][kIds - 1]);
  const bool taken = id <= limit;
  int leader = query, place = own;  // the first query that selected the id, and where it did
  for (int n = 0; taken && n < query; ++n) {
    const int p = below(s.ids[n], kIds, id);
    if (p == kIds || s.ids[n][p] != id) continue;
    leader = n, place = p;
    break;
  }
  const bool leads = taken && leader == query;
  const uint32_t leading = __ballot_sync(~0u, leads);
  if (thread % 32 == 0) s.of_warps[thread / 32] = __popc(leading);
  named_sync(kUniting, kWindow);
  int row = __popc(leading & ((1u << thread % 32) - 1)), united = 0;
#pragma unroll
  for (int w = 0; w < kWindow / 32; ++w) {
    if (w < thread / 32) row += s.of_warps[w];
    united += s.of_warps[w];
  }
  if (leads) s.rows[row] = id, s.places[query][own] = static_cast<int16_t>(row);
  named_sync(kUniting, kWindow);
  if (taken) {
    row = s.places[leader][place];
    s.gradients[query][row] = queries.gradients[at];
#pragma unroll
    for (int n = 0; n < kParts; ++n) s.signs[query][n][row] = reinterpret_cast<const uint32_t*>(queries.signs)[at * kParts + n];
  }
  if (thread < kQueries) s.begins[thread] += below(s.ids[thread], kIds, limit + 1);
  named_sync(kUniting, kWindow);
  return united;
}

// Two neighbouring heads' coefficients: G twice where bits j and 8 + j of `signs` are set. A byte's sign, repeated, is a mask.
__device__ __forceinline__ uint32_t coefficients(uint32_t gradient_twice, uint32_t signs, int j) {
  uint32_t mask;
  asm("prmt.b32 %0, %1, 0, 0x9988;" : "=r"(mask) : "r"(signs << (7 - j)));
  return gradient_twice & mask;
}

template <int kHeads>
__device__ __forceinline__ void add_rows(UnitedShared<kHeads>& s, const IndexLossArguments& a, int first_row, int thread) {
  constexpr int kQueries = UnitedShared<kHeads>::kQueries, kParts = UnitedShared<kHeads>::kParts;
  const int lane = thread % 32, row = first_row + thread / 32 % 4 * 16 + lane / 4;
  uint32_t left[kQueries * kParts][2][4];
#pragma unroll
  for (int n = 0; n < kQueries; ++n) {
    uint32_t twice[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const __nv_bfloat162 both = __float2bfloat162_rn(s.gradients[n][row + 8 * half]);
      twice[half] = reinterpret_cast<const uint32_t&>(both);
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t byte = s.signs[n][part][row + 8 * half] >> lane % 4 * 8, signs = (byte & 0xf) | (byte & 0xf0) << 4;
#pragma unroll
        for (int j = 0; j < 4; ++j) left[n * kParts + part][j / 2][j % 2 * 2 + half] = coefficients(twice[half], signs, j);
      }
  }
  const int32_t* ids = s.rows + first_row + thread / 32 % 4 * 16;
#pragma unroll 1
  for (int b = 0; b < kBlocks; ++b) {
    float d[32];
    pin(d);
    wgmma_begin();
#pragma unroll
    for (int kk = 0; kk < kColumns / 16; ++kk)
      wgmma_n64_registers<1>(d, left[kk / 2][kk % 2], column_descriptor(shared_address(s.q[b])) + kk * 128, kk != 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(d);
    const float unit = __ldg(&a.unit->scale);
    for_each_line(d, lane, [&](int r, int column, float x) {
      if (ids[r] >= 0) add_fixed(a.sums + static_cast<int64_t>(ids[r]) * kDims + b * 64 + column, x, unit);
    });
  }
}

// A segment of the keys that the queries from t on selected. Segments have equal parts of the longest selection.
template <int kHeads>
__device__ __forceinline__ void add_united(unsigned char* raw, const IndexLossArguments& a, const Queries& queries, int64_t t, int segment, int segments) {
  using S = UnitedShared<kHeads>;
  S& s = *reinterpret_cast<S*>(raw);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= kWindow) return;
  const int here = static_cast<int>(min(static_cast<int64_t>(S::kQueries), queries.last - t));
  if (thread < S::kQueries) {
    const int count = thread < here ? a.counts[t + thread] : 0;
    int64_t longest = t;
    for (int n = 1; n < here; ++n)
      if (a.counts[t + n] > a.counts[longest]) longest = t + n;
    const auto bound = [&](int of) {
      if (of == 0 || of == segments) return of == 0 ? 0 : count;
      return below(a.indices + (t + thread) * a.k, count, a.indices[longest * a.k + static_cast<int64_t>(a.counts[longest]) * of / segments]);
    };
    s.begins[thread] = bound(segment);
    s.ends[thread] = bound(segment + 1);
  }
  load_queries(s, a, t, here, thread);
  fence_to_async();
  named_sync(kUniting, kWindow);
  for (;;) {
    bool more = false;
    for (int n = 0; n < S::kQueries; ++n) more = more || s.begins[n] < s.ends[n];
    if (!more) return;
    const int united = unite(s, a, queries, t, thread);
    for (int row = thread / kGroup * kRows; row < united; row += kWindow / kGroup * kRows) add_rows<kHeads>(s, a, row, thread);
    named_sync(kUniting, kWindow);
  }
}

}  // namespace hyscale::index_halves
