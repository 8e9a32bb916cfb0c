// Second half of the index loss on Hopper: dkeys(row) += sum over queries and heads of G [X > 0] w q, from the G and signs that
// index_loss_queries.cu left. A block unites what a few neighbouring queries selected, so that a row which they share is added to
// once: the queries' heads are the contraction of a product whose left side, the coefficients, is made in registers.
//
// What bounds it: 512 bytes of reductions per united row. Blocks come in the order of their segments of the key sequence, so
// that the sums being added to at a time fit the L2 cache.
#include "kernels/common/hopper.cuh"
#include "kernels/common/op.h"
#include "kernels/index_loss/index_loss_cuda.h"

namespace hyscale {
namespace {

using namespace hopper;
using bf16 = __nv_bfloat16;
constexpr int kGroup = 128, kGroups = 2, kThreads = kGroups * kGroup, kWarps = kThreads / 32, kDims = 128, kBlocks = kDims / 64;
constexpr int kColumns = 128;    // of coefficients: heads of the united queries
constexpr int kWindow = kThreads;  // ids looked at together, a thread each
constexpr int kRows = 64;        // of a product
constexpr int kNone = INT32_MAX;

template <int kHeads>
struct Shared {
  static constexpr int kQueries = kColumns / kHeads, kIds = kWindow / kQueries, kParts = kHeads / 32;
  alignas(1024) unsigned char q[kBlocks][kColumns * 128];  // w q of the queries' heads
  alignas(16) int32_t ids[kQueries][kIds];                 // ascending, kNone behind the last
  int16_t places[kQueries][kIds];                          // of united rows
  int32_t rows[kWindow];                                   // united: ids, -1 behind the last
  float gradients[kQueries][kWindow];                      // of united rows, 0 where the query did not select it
  uint32_t signs[kQueries][kParts][kWindow];
  int begins[kQueries], ends[kQueries];  // slots of the segment that are not united yet
  int of_warps[kWarps];                  // united rows
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
__device__ void load_queries(Shared<kHeads>& s, const IndexLossArguments& a, int64_t t, int here, int thread) {
  for (int i = thread; i < kColumns * 16; i += kThreads) {
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
__device__ int unite(Shared<kHeads>& s, const IndexLossArguments& a, int64_t t, int64_t first, int thread) {
  constexpr int kQueries = Shared<kHeads>::kQueries, kIds = Shared<kHeads>::kIds, kParts = Shared<kHeads>::kParts;
  const int query = thread / kIds, own = thread % kIds, slot = s.begins[query] + own;
  const int64_t at = (t - first + query) * a.k + slot;
  const int32_t id = slot < s.ends[query] ? a.indices[first * a.k + at] : kNone;
  s.ids[query][own] = id;
  s.rows[thread] = -1;
#pragma unroll
  for (int n = 0; n < kQueries; ++n) s.gradients[n][thread] = 0;
  __syncthreads();
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
  __syncthreads();
  int row = __popc(leading & ((1u << thread % 32) - 1)), united = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < thread / 32) row += s.of_warps[w];
    united += s.of_warps[w];
  }
  if (leads) s.rows[row] = id, s.places[query][own] = static_cast<int16_t>(row);
  __syncthreads();
  if (taken) {
    row = s.places[leader][place];
    s.gradients[query][row] = a.gradients[at];
#pragma unroll
    for (int n = 0; n < kParts; ++n) s.signs[query][n][row] = reinterpret_cast<const uint32_t*>(a.signs)[at * kParts + n];
  }
  if (thread < kQueries) s.begins[thread] += below(s.ids[thread], kIds, limit + 1);
  __syncthreads();
  return united;
}

// Two neighbouring heads' coefficients.
__device__ __forceinline__ uint32_t coefficients(uint32_t gradient_twice, uint32_t signs, int bit) {
  return gradient_twice & ((signs >> bit & 1 ? 0xffffu : 0u) | (signs >> bit & 2 ? 0xffff0000u : 0u));
}

template <int kHeads, bool kFixed>
__device__ __forceinline__ void add_rows(Shared<kHeads>& s, const IndexLossArguments& a, int first_row, int thread) {
  constexpr int kQueries = Shared<kHeads>::kQueries, kParts = Shared<kHeads>::kParts;
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
        const uint32_t signs = s.signs[n][part][row + 8 * half] >> lane % 4 * 8;
#pragma unroll
        for (int j = 0; j < 4; ++j) left[n * kParts + part][j / 2][j % 2 * 2 + half] = coefficients(twice[half], signs, 2 * j);
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
    if constexpr (kFixed) {
      const float unit = __ldg(&a.unit->scale);
      for_each_line(d, lane, [&](int r, int column, float x) {
        if (ids[r] >= 0) add_fixed(a.sums + static_cast<int64_t>(ids[r]) * kDims + b * 64 + column, x, unit);
      });
    } else {
      for_each_line_of_fours(d, lane, [&](int r, int column, float x, float y, float z, float w) {
        if (ids[r] >= 0) add_four(a.dkeys + ids[r] * a.dkeys_stride + b * 64 + column, x, y, z, w);
      });
    }
  }
}

template <int kHeads, bool kFixed>
__global__ void __launch_bounds__(kThreads, 2) united_rows(const IndexLossArguments a, int64_t first, int64_t last, int segments) {
  extern __shared__ unsigned char raw[];
  using S = Shared<kHeads>;
  S& s = *reinterpret_cast<S*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int thread = static_cast<int>(threadIdx.x);
  const int groups = static_cast<int>(gridDim.x) / segments, segment = static_cast<int>(blockIdx.x) / groups;
  const int64_t t = first + static_cast<int64_t>(blockIdx.x) % groups * S::kQueries;
  const int here = static_cast<int>(min(static_cast<int64_t>(S::kQueries), last - t));
  if (thread < S::kQueries) {
    // Segments have equal parts of the longest selection.
    const int count = thread < here ? a.counts[t + thread] : 0;
    int64_t longest = t;
    for (int n = 1; n < here; ++n)
      if (a.counts[t + n] > a.counts[longest]) longest = t + n;
    const int64_t length = a.counts[longest];
    const auto bound = [&](int of) {
      if (of == 0) return 0;
      if (of == segments) return count;
      return below(a.indices + (t + thread) * a.k, count, length ? a.indices[longest * a.k + length * of / segments] : 0);
    };
    s.begins[thread] = bound(segment);
    s.ends[thread] = bound(segment + 1);
  }
  load_queries(s, a, t, here, thread);
  fence_to_async();
  __syncthreads();
  for (;;) {
    bool more = false;
    for (int n = 0; n < S::kQueries; ++n) more = more || s.begins[n] < s.ends[n];
    if (!more) return;
    const int united = unite(s, a, t, first, thread);
    for (int row = thread / kGroup * kRows; row < united; row += kGroups * kRows) add_rows<kHeads, kFixed>(s, a, row, thread);
    __syncthreads();
  }
}

template <int kHeads, bool kFixed>
void launch(const IndexLossArguments& a, int64_t first, int64_t last, int segments, cudaStream_t stream) {
  constexpr size_t kShared = sizeof(Shared<kHeads>) + 1024;
  const cudaError_t status = cudaFuncSetAttribute(united_rows<kHeads, kFixed>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  HYSCALE_CHECK(status == cudaSuccess, "index loss needs ", kShared, " bytes of shared memory: ", cudaGetErrorString(status));
  const int64_t groups = (last - first + Shared<kHeads>::kQueries - 1) / Shared<kHeads>::kQueries;
  united_rows<kHeads, kFixed><<<static_cast<unsigned>(groups * segments), kThreads, kShared, stream>>>(a, first, last, segments);
}

}  // namespace

void index_loss_keys(const IndexLossArguments& a, int64_t first, int64_t last, int segments, cudaStream_t stream) {
  if (a.heads == 32) a.sums ? launch<32, true>(a, first, last, segments, stream) : launch<32, false>(a, first, last, segments, stream);
  else a.sums ? launch<64, true>(a, first, last, segments, stream) : launch<64, false>(a, first, last, segments, stream);
}

}  // namespace hyscale
