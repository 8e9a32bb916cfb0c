// The chunk form on tensor cores, for bf16, heads of 128 and chunks of 64. Chunks are prepared in parallel; one pass over a head's chunks
// makes the states, which stay f32 in registers, with the columns split over two blocks; outputs are again parallel.
//
// Backward needs neither U nor W beyond that: with Y = T^T dV', T = (I + A)^-1 and f = -strict_lower(Y V'^T), F = f D,
//   X = T^T dW = -Y S^T,   dA = f,   Z = E (Q K^T) and H = dA A meet dG only in row and column sums, which are rows of products already made:
//   dQ = scale diag(g) dO S^T + E K,   dK = (diag(beta g) X + diag(beta) F K) + (E^T Q + diag(r) V' dS^T + F^T diag(beta) K) = plus + minus
//   dG = rowsum(Q dQ) + rowsum(K plus) - rowsum(K minus), and for the last token g_last <dS, S> + sum of rowsum(K (diag(r) V' dS^T)).
// Tokens beyond a document's end count as zeros with beta 0 and no decay.
#include "kernels/common/head_rows.cuh"
#include "kernels/common/op.h"
#include "kernels/gated_delta/gated_delta_cuda.h"
#include "kernels/gated_delta/scan_ends.cuh"
#include "kernels/gated_delta/tiles.cuh"

namespace hyscale {
namespace {

using tiles::Lies;
using tiles::Part;
using tiles::Tile;
using tiles::kThreads;

constexpr int kChunk = 64, kDim = 128;
constexpr int64_t kRowsOf = kChunk * kDim, kState = kDim * kDim, kSquare = kChunk * kChunk;

struct Sizes {
  int64_t tokens, documents;
  int key_heads, value_heads;
  template <typename Op>
  explicit Sizes(const Op& g)
      : tokens(g.q.size(0)), documents(g.document_starts.size(0) - 1), key_heads(static_cast<int>(g.q.size(1))), value_heads(static_cast<int>(g.v.size(1))) {}
  __host__ __device__ int group() const { return value_heads / key_heads; }
  // Document d's chunks are numbered from starts[d] / 64 + d on: every document may end in the middle of one.
  __host__ __device__ int64_t slots() const { return tokens / kChunk + documents; }
};

struct Inputs {
  HeadRows<bf16> q, k, v;
  const float *log_decay, *beta;
  const int32_t* starts;
  float scale;
  template <typename Op>
  explicit Inputs(const Op& g) : q(g.q), k(g.k), v(g.v), log_decay(g.log_decay.f32()), beta(g.beta.f32()), starts(g.document_starts.i32()), scale(g.scale) {}
};

struct ChunkPlace {
  int64_t first;
  int rows;  // 0: no chunk has this number
};
__device__ ChunkPlace place_of(const Inputs& x, const Sizes& n, int64_t slot) {
  int64_t low = 0, high = n.documents;  // the chunk is of document low
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (x.starts[middle] / kChunk + middle <= slot ? low : high) = middle;
  }
  const int64_t first = x.starts[low] + (slot - x.starts[low] / kChunk - low) * kChunk, left = x.starts[low + 1] - first;
  return {first, static_cast<int>(left < 0 ? 0 : left < kChunk ? left : kChunk)};
}

// What lies in memory for each chunk and value head.
struct Memory {
  bf16 *w, *u, *states;          // [slots, Hv]: W [64, 128]; U, then V' [64, 128]; S at the chunk's start [128, 128]
  float* sums;                   // [slots, Hv, 64]: G
  bf16 *inverse, *dv, *dstates;  // backward alone: T [64, 64]; scale E0^T dO, then dV' [64, 128]; dS of what follows the chunk [128, 128]
};
template <typename Take>
Memory take_memory(const Sizes& n, bool backward, Take take) {
  const int64_t chunks = n.slots() * n.value_heads;
  Memory m{};
  take(m.w, chunks * kRowsOf), take(m.u, chunks * kRowsOf), take(m.states, chunks * kState), take(m.sums, chunks * kChunk);
  if (backward) take(m.inverse, chunks * kSquare), take(m.dv, chunks * kRowsOf), take(m.dstates, chunks * kState);
  return m;
}
size_t memory_bytes(const Sizes& n, bool backward) {
  size_t bytes = 0;
  take_memory(n, backward, [&](auto*& p, int64_t count) { bytes += aligned_bytes(static_cast<size_t>(count) * sizeof(*p)); });
  return bytes;
}
Memory take_memory(const Tensor& workspace, const Sizes& n, bool backward) {
  Workspace w(workspace);
  return take_memory(n, backward, [&]<typename T>(T*& p, int64_t count) { p = w.take<T>(count); });
}

// Pieces of dynamic shared memory.
struct Shared {
  unsigned char* next;
  template <int kColumns>
  __device__ Tile<kColumns> tile(int rows) {
    const Tile<kColumns> t{next};
    next += rows * kColumns * 2;
    return t;
  }
  __device__ float* floats(int count) {
    float* p = reinterpret_cast<float*>(next);
    next += count * 4;
    return p;
  }
};
extern __shared__ __align__(1024) unsigned char dynamic_memory[];

// A warp's place: 16 rows, and halves of 64, 32 or 128 columns.
struct Warp {
  int row = static_cast<int>(threadIdx.x) / 64 * 16, half = static_cast<int>(threadIdx.x) / 32 % 2;
};

__device__ __forceinline__ uint32_t as_tf32(float x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

// d += a b, 16 x 16 numbers, by one warp; rows of a and b are `step_a` and `step_b` apart.
__device__ __forceinline__ void add_block_product(float (&d)[2][4], const float* a, int step_a, const float* b, int step_b) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = 0; k < 16; k += 8) {
    const uint32_t a0 = as_tf32(a[g * step_a + k + t]), a1 = as_tf32(a[(g + 8) * step_a + k + t]), a2 = as_tf32(a[g * step_a + k + t + 4]),
                a3 = as_tf32(a[(g + 8) * step_a + k + t + 4]);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint32_t b0 = as_tf32(b[(k + t) * step_b + n * 8 + g]), b1 = as_tf32(b[(k + t + 4) * step_b + n * 8 + g]);
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                   : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
  }
}
__device__ __forceinline__ void store_block(const float (&d)[2][4], float sign, float* to, int step) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) to[(g + i / 2 * 8) * step + n * 8 + t * 2 + i % 2] = sign * d[n][i];
}

constexpr int kStep = kChunk + 4;  // of f32 matrices, so that a warp's reads of a column meet different banks

// t = (I + a)^-1 for a strictly lower a, [64, 64]: diagonal blocks of 16 by substitution, then T_ij = -T_ii sum over k of A_ik T_kj, one
// diagonal further out at a time. scratch: [4, 16, 20].
__device__ void invert(const float* a, float* t, float* scratch) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  for (int i = thread; i < kSquare; i += kThreads) t[i / kChunk * kStep + i % kChunk] = 0;
  __syncthreads();
  if (thread < kChunk) {
    const int block = thread / 16 * 16, column = thread % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      x[i] = i == column ? 1 : 0;
#pragma unroll
      for (int j = 0; j < 16; ++j)
        if (j < i) x[i] -= a[(block + i) * kStep + block + j] * x[j];
      t[(block + i) * kStep + block + column] = x[i];
    }
  }
  for (int d = 1; d < 4; ++d) {
    __syncthreads();
    if (warp >= 4 - d) continue;
    const int i = (d + warp) * 16, j = warp * 16;
    float* mine = scratch + warp * 320;
    float sum[2][4] = {}, block[2][4] = {};
    for (int k = j; k < i; k += 16) add_block_product(sum, a + i * kStep + k, kStep, t + k * kStep + j, kStep);
    store_block(sum, 1, mine, 20);
    __syncwarp();
    add_block_product(block, t + i * kStep + i, kStep, mine, 20);
    store_block(block, -1, t + i * kStep + j, kStep);
  }
  __syncthreads();
}

// sums[64] becomes G and beta[64] the chunk's betas; by the first warp.
__device__ void load_gates(const Inputs& x, const Sizes& n, ChunkPlace c, int head, float* sums, float* beta) {
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x);
  float decay[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane * 2 + i;
    const int64_t at = (c.first + row) * n.value_heads + head;
    decay[i] = row < c.rows ? x.log_decay[at] : 0;
    beta[row] = row < c.rows ? x.beta[at] : 0;
  }
  float before = decay[0] + decay[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_up_sync(~0u, before, step);
    if (lane >= step) before += other;
  }
  sums[lane * 2] = before - decay[1];
  sums[lane * 2 + 1] = before;
}

// D_ij.
__device__ __forceinline__ float decay_between(const float* sums, int i, int j) { return __expf(sums[i] - sums[j]); }

constexpr size_t kPrepareBytes = 2 * kRowsOf * 2 + 2 * kSquare * 2 + 2 * kChunk * kStep * 4 + 1280 * 4 + 2 * kChunk * 4;

// U, W, G and, for backward, T. Grid: slots, value heads.
__global__ void __launch_bounds__(kThreads, 2) prepare_kernel(Inputs x, Memory m, Sizes n) {
  const ChunkPlace c = place_of(x, n, blockIdx.x);
  if (c.rows == 0) return;
  const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * n.value_heads + head;
  Shared shared{dynamic_memory};
  const Tile<128> k = shared.tile<128>(kChunk), v = shared.tile<128>(kChunk);
  const Tile<64> t_beta = shared.tile<64>(kChunk), t_gamma = shared.tile<64>(kChunk);
  float *a = shared.floats(kChunk * kStep), *t = shared.floats(kChunk * kStep), *scratch = shared.floats(1280), *sums = shared.floats(kChunk), *beta = shared.floats(kChunk);
  tiles::copy_rows(k, x.k(c.first, head / n.group()), x.k.token_step, c.rows);
  tiles::copy_rows(v, x.v(c.first, head), x.v.token_step, c.rows);
  load_gates(x, n, c, head, sums, beta);
  hopper::copies_done();
  __syncthreads();
  const Warp w;
  {
    Part<4> d = {};
    tiles::add_product<kDim, Lies::along, Lies::along>(d, k, w.row, k, w.half * 32);
    tiles::for_each_pair(d, w.row, w.half * 32, [&](int i, int j, float& d0, float& d1) {
      a[i * kStep + j] = j < i ? beta[i] * d0 * decay_between(sums, i, j) : 0;
      a[i * kStep + j + 1] = j + 1 < i ? beta[i] * d1 * decay_between(sums, i, j + 1) : 0;
    });
  }
  __syncthreads();
  invert(a, t, scratch);
  for (int p = thread; p < kSquare / 2; p += kThreads) {
    const int i = p / 32, j = p % 32 * 2;
    const float t0 = t[i * kStep + j], t1 = t[i * kStep + j + 1], b0 = beta[j], b1 = beta[j + 1];
    t_beta.pair(i, j) = __floats2bfloat162_rn(t0 * b0, t1 * b1);
    t_gamma.pair(i, j) = __floats2bfloat162_rn(t0 * b0 * __expf(sums[j]), t1 * b1 * __expf(sums[j + 1]));
    if (m.inverse) reinterpret_cast<__nv_bfloat162*>(m.inverse + at * kSquare)[p] = __floats2bfloat162_rn(t0, t1);
  }
  if (thread < kChunk) m.sums[at * kChunk + thread] = sums[thread];
  __syncthreads();
  Part<8> u = {}, key = {};
  tiles::add_product<kChunk, Lies::along, Lies::across>(u, t_beta, w.row, v, w.half * 64);
  tiles::add_product<kChunk, Lies::along, Lies::across>(key, t_gamma, w.row, k, w.half * 64);
  __syncthreads();
  tiles::for_each_pair(u, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) { v.pair(i, j) = __floats2bfloat162_rn(d0, d1); });
  tiles::for_each_pair(key, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) { k.pair(i, j) = __floats2bfloat162_rn(d0, d1); });
  __syncthreads();
  tiles::store_rows(v, m.u + at * kRowsOf, kDim, kChunk);
  tiles::store_rows(k, m.w + at * kRowsOf, kDim, kChunk);
}

// The state's 128 rows by 64 columns of a block: each warp has 16 rows.
__device__ __forceinline__ int state_row() { return static_cast<int>(threadIdx.x) / 32 * 16; }

// memory: of the columns, or absent.
__device__ __forceinline__ void store_state(Part<8>& state, Tile<64> to, bf16* memory) {
  const int row = state_row();
  tiles::for_each_pair(state, row, 0, [&](int i, int j, float& d0, float& d1) { to.pair(i, j) = __floats2bfloat162_rn(d0, d1); });
  __syncthreads();
  if (memory) tiles::store_rows(to, memory, kDim, kDim);
}

// f32 states at the ends of a scan; `column` is the block's first.
__device__ __forceinline__ void load_first_state(Part<8>& state, const float* from, int column) {
  if (!from) return;
  tiles::for_each_pair(state, state_row(), column, [&](int i, int j, float& d0, float& d1) { d0 = from[i * kDim + j], d1 = from[i * kDim + j + 1]; });
}
__device__ __forceinline__ void store_last_state(Part<8>& state, float* to, int column) {
  if (!to) return;
  tiles::for_each_pair(state, state_row(), column, [&](int i, int j, float& d0, float& d1) { to[i * kDim + j] = d0, to[i * kDim + j + 1] = d1; });
}

__device__ __forceinline__ void scale_part(Part<8>& d, float factor) {
#pragma unroll
  for (int t = 0; t < 8; ++t)
#pragma unroll
    for (int i = 0; i < 4; ++i) d[t][i] *= factor;
}

constexpr size_t kScanStage = 2 * kRowsOf * 2 + kSquare * 2, kScanBytes = 2 * kScanStage + kDim * 64 * 2 + 2 * kChunk * 4;

// States at chunk starts, and V' in place of U. Grid: halves of the columns, value heads, documents. Two more halves are those of the
// map: what becomes of the identity where all values are zero.
__global__ void __launch_bounds__(kThreads, 1) scan_kernel(Inputs x, Memory m, ScanEnds ends, Sizes n) {
  const bool of_map = blockIdx.x >= 2;
  const int half = static_cast<int>(blockIdx.x) % 2, head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  Shared shared{dynamic_memory};
  struct Stage {
    Tile<128> w, k;
    Tile<64> u;
    __device__ Stage(Shared from, int64_t i) {
      from.next += i % 2 * kScanStage;
      w = from.tile<128>(kChunk), k = from.tile<128>(kChunk), u = from.tile<64>(kChunk);
    }
  };
  const Shared stages = shared;
  shared.next += 2 * kScanStage;
  const Tile<64> state_tile = shared.tile<64>(kDim);
  float* sums = shared.floats(2 * kChunk);
  const Warp warp;
  for (int64_t document = blockIdx.z; document < n.documents; document += gridDim.z) {
    const int64_t begin = x.starts[document], length = x.starts[document + 1] - begin, slot = begin / kChunk + document, chunks = (length + kChunk - 1) / kChunk;
    const auto load = [&](int64_t i) {
      const Stage s(stages, i);
      const int64_t at = (slot + i) * n.value_heads + head, left = length - i * kChunk;
      tiles::copy_rows(s.w, m.w + at * kRowsOf, kDim, kChunk);
      tiles::copy_rows(s.k, x.k(begin + i * kChunk, head / n.group()), x.k.token_step, static_cast<int>(left < kChunk ? left : kChunk));
      tiles::copy_rows(s.u, m.u + at * kRowsOf + half * 64, kDim, of_map ? 0 : kChunk);
      if (thread < kChunk) sums[i % 2 * kChunk + thread] = m.sums[at * kChunk + thread];
    };
    Part<8> state = {};
    if (of_map)
      tiles::for_each_pair(state, state_row(), half * 64, [](int i, int j, float& d0, float& d1) { d0 = i == j, d1 = i == j + 1; });
    else
      load_first_state(state, ends.carried(document, head, n.value_heads, kState), half * 64);
    __syncthreads();
    if (chunks > 0) load(0);
    for (int64_t i = 0; i < chunks; ++i) {
      const Stage s(stages, i);
      const float* g = sums + i % 2 * kChunk;
      const int64_t at = (slot + i) * n.value_heads + head;
      hopper::copies_done();
      store_state(state, state_tile, of_map ? nullptr : m.states + at * kState + half * 64);
      if (i + 1 < chunks) load(i + 1);
      Part<4> moved = {};
      tiles::add_product<kDim, Lies::along, Lies::across>(moved, s.w, warp.row, state_tile, warp.half * 32);
      bf16* values = m.u + at * kRowsOf + half * 64;
      tiles::for_each_pair(moved, warp.row, warp.half * 32, [&](int r, int c, float& d0, float& d1) {
        const float2 u = __bfloat1622float2(s.u.pair(r, c));
        const float v0 = u.x - d0, v1 = u.y - d1, rest = __expf(g[kChunk - 1] - g[r]);
        if (!of_map) *reinterpret_cast<__nv_bfloat162*>(values + r * kDim + c) = __floats2bfloat162_rn(v0, v1);
        s.u.pair(r, c) = __floats2bfloat162_rn(v0 * rest, v1 * rest);
      });
      __syncthreads();
      scale_part(state, __expf(g[kChunk - 1]));
      tiles::add_product<kChunk, Lies::across, Lies::across>(state, s.k, thread / 32 * 16, s.u, 0);
      __syncthreads();
    }
    float* last = of_map ? ends.map : ends.last;
    store_last_state(state, last ? last + (document * n.value_heads + head) * kState : nullptr, half * 64);
  }
}

constexpr size_t kOutputBytes = 3 * kRowsOf * 2 + kState * 2 + kSquare * 2 + 2 * kChunk * 4;

// Grid: slots, value heads.
__global__ void __launch_bounds__(kThreads, 2) output_kernel(Inputs x, HeadRows<bf16> o, Memory m, Sizes n) {
  const ChunkPlace c = place_of(x, n, blockIdx.x);
  if (c.rows == 0) return;
  const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * n.value_heads + head;
  Shared shared{dynamic_memory};
  const Tile<128> q = shared.tile<128>(kChunk), k = shared.tile<128>(kChunk), v = shared.tile<128>(kChunk), state = shared.tile<128>(kDim);
  const Tile<64> attention = shared.tile<64>(kChunk);
  float* sums = shared.floats(kChunk);
  tiles::copy_rows(q, x.q(c.first, head / n.group()), x.q.token_step, c.rows);
  tiles::copy_rows(k, x.k(c.first, head / n.group()), x.k.token_step, c.rows);
  tiles::copy_rows(v, m.u + at * kRowsOf, kDim, kChunk);
  for (int half = 0; half < 2; ++half) tiles::copy_rows(Tile<128>{state.data + half * kRowsOf * 2}, m.states + at * kState + half * kRowsOf, kDim, kChunk);
  if (thread < kChunk) sums[thread] = m.sums[at * kChunk + thread];
  hopper::copies_done();
  __syncthreads();
  const Warp w;
  {
    Part<4> d = {};
    tiles::add_product<kDim, Lies::along, Lies::along>(d, q, w.row, k, w.half * 32);
    tiles::for_each_pair(d, w.row, w.half * 32, [&](int i, int j, float& d0, float& d1) {
      attention.pair(i, j) = __floats2bfloat162_rn(j <= i ? d0 * decay_between(sums, i, j) : 0, j + 1 <= i ? d1 * decay_between(sums, i, j + 1) : 0);
    });
  }
  Part<8> out = {};
  tiles::add_product<kDim, Lies::along, Lies::across>(out, q, w.row, state, w.half * 64);
  tiles::for_each_pair(out, w.row, 0, [&](int i, int, float& d0, float& d1) { d0 *= __expf(sums[i]), d1 *= __expf(sums[i]); });
  __syncthreads();
  tiles::add_product<kChunk, Lies::along, Lies::across>(out, attention, w.row, v, w.half * 64);
  tiles::for_each_pair(out, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) { k.pair(i, j) = __floats2bfloat162_rn(x.scale * d0, x.scale * d1); });
  __syncthreads();
  tiles::store_rows(k, o(c.first, head), o.token_step, c.rows);
}

constexpr size_t kLocalBytes = 3 * kRowsOf * 2 + kSquare * 2 + kChunk * 4;

// dV' by the chunk's own outputs: scale E0^T dO. Grid: slots, value heads.
__global__ void __launch_bounds__(kThreads, 2) local_kernel(Inputs x, HeadRows<bf16> dout, Memory m, Sizes n) {
  const ChunkPlace c = place_of(x, n, blockIdx.x);
  if (c.rows == 0) return;
  const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * n.value_heads + head;
  Shared shared{dynamic_memory};
  const Tile<128> q = shared.tile<128>(kChunk), k = shared.tile<128>(kChunk), d_out = shared.tile<128>(kChunk);
  const Tile<64> attention = shared.tile<64>(kChunk);
  float* sums = shared.floats(kChunk);
  tiles::copy_rows(q, x.q(c.first, head / n.group()), x.q.token_step, c.rows);
  tiles::copy_rows(k, x.k(c.first, head / n.group()), x.k.token_step, c.rows);
  tiles::copy_rows(d_out, dout(c.first, head), dout.token_step, c.rows);
  if (thread < kChunk) sums[thread] = m.sums[at * kChunk + thread];
  hopper::copies_done();
  __syncthreads();
  const Warp w;
  Part<4> d = {};
  tiles::add_product<kDim, Lies::along, Lies::along>(d, q, w.row, k, w.half * 32);
  tiles::for_each_pair(d, w.row, w.half * 32, [&](int i, int j, float& d0, float& d1) {
    attention.pair(i, j) = __floats2bfloat162_rn(j <= i ? x.scale * d0 * decay_between(sums, i, j) : 0, j + 1 <= i ? x.scale * d1 * decay_between(sums, i, j + 1) : 0);
  });
  __syncthreads();
  Part<8> dv = {};
  tiles::add_product<kChunk, Lies::across, Lies::across>(dv, attention, w.row, d_out, w.half * 64);
  tiles::for_each_pair(dv, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) { k.pair(i, j) = __floats2bfloat162_rn(d0, d1); });
  __syncthreads();
  tiles::store_rows(k, m.dv + at * kRowsOf, kDim, kChunk);
}

constexpr size_t kReverseStage = 3 * kRowsOf * 2 + 2 * kSquare * 2, kReverseBytes = 2 * kReverseStage + kDim * 64 * 2 + 2 * kChunk * 4;

// dS of what follows each chunk, and dV' in place of its local part. Grid: halves of the columns, value heads, documents.
__global__ void __launch_bounds__(kThreads, 1) reverse_scan_kernel(Inputs x, HeadRows<bf16> dout, Memory m, ScanEnds ends, Sizes n) {
  const int half = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  Shared shared{dynamic_memory};
  struct Stage {
    Tile<128> w, k, q;
    Tile<64> dv, dout;
    __device__ Stage(Shared from, int64_t i) {
      from.next += i % 2 * kReverseStage;
      w = from.tile<128>(kChunk), k = from.tile<128>(kChunk), q = from.tile<128>(kChunk), dv = from.tile<64>(kChunk), dout = from.tile<64>(kChunk);
    }
  };
  const Shared stages = shared;
  shared.next += 2 * kReverseStage;
  const Tile<64> state_tile = shared.tile<64>(kDim);
  float* sums = shared.floats(2 * kChunk);
  const Warp warp;
  for (int64_t document = blockIdx.z; document < n.documents; document += gridDim.z) {
    const int64_t begin = x.starts[document], length = x.starts[document + 1] - begin, slot = begin / kChunk + document, chunks = (length + kChunk - 1) / kChunk;
    const auto load = [&](int64_t i) {
      const Stage s(stages, i);
      const int64_t at = (slot + i) * n.value_heads + head, left = length - i * kChunk, first = begin + i * kChunk;
      const int rows = static_cast<int>(left < kChunk ? left : kChunk);
      tiles::copy_rows(s.w, m.w + at * kRowsOf, kDim, kChunk);
      tiles::copy_rows(s.k, x.k(first, head / n.group()), x.k.token_step, rows);
      tiles::copy_rows(s.q, x.q(first, head / n.group()), x.q.token_step, rows);
      tiles::copy_rows(s.dv, m.dv + at * kRowsOf + half * 64, kDim, kChunk);
      tiles::copy_rows(s.dout, dout(first, head) + half * 64, dout.token_step, rows);
      if (thread < kChunk) sums[i % 2 * kChunk + thread] = m.sums[at * kChunk + thread];
    };
    Part<8> state = {};
    load_first_state(state, ends.carried(document, head, n.value_heads, kState), half * 64);
    __syncthreads();
    if (chunks > 0) load(chunks - 1);
    for (int64_t i = chunks; i-- > 0;) {
      const Stage s(stages, i);
      const float* g = sums + i % 2 * kChunk;
      const int64_t at = (slot + i) * n.value_heads + head;
      hopper::copies_done();
      store_state(state, state_tile, m.dstates + at * kState + half * 64);
      if (i > 0) load(i - 1);
      for (int p = thread; p < kChunk * 32; p += kThreads) {
        const int r = p / 32, c = p % 32 * 2;
        const float2 d = __bfloat1622float2(s.dout.pair(r, c));
        const float factor = x.scale * __expf(g[r]);
        s.dout.pair(r, c) = __floats2bfloat162_rn(factor * d.x, factor * d.y);
      }
      Part<4> moved = {};
      tiles::add_product<kDim, Lies::along, Lies::across>(moved, s.k, warp.row, state_tile, warp.half * 32);
      bf16* values = m.dv + at * kRowsOf + half * 64;
      tiles::for_each_pair(moved, warp.row, warp.half * 32, [&](int r, int c, float& d0, float& d1) {
        const float2 local = __bfloat1622float2(s.dv.pair(r, c));
        const float rest = __expf(g[kChunk - 1] - g[r]), v0 = local.x + rest * d0, v1 = local.y + rest * d1;
        *reinterpret_cast<__nv_bfloat162*>(values + r * kDim + c) = __floats2bfloat162_rn(v0, v1);
        s.dv.pair(r, c) = __floats2bfloat162_rn(-v0, -v1);
      });
      __syncthreads();
      scale_part(state, __expf(g[kChunk - 1]));
      tiles::add_product<kChunk, Lies::across, Lies::across>(state, s.q, thread / 32 * 16, s.dout, 0);
      tiles::add_product<kChunk, Lies::across, Lies::across>(state, s.w, thread / 32 * 16, s.dv, 0);
      __syncthreads();
    }
    store_last_state(state, ends.last ? ends.last + (document * n.value_heads + head) * kState : nullptr, half * 64);
  }
}

struct Gradients {
  HeadRows<bf16> dout, dq, dk, dv;
  float *dlog_decay, *dbeta;
};

// Sums of x over a row's columns of this warp; each row's first lane of four adds them to its own number of sums[2][64].
__device__ __forceinline__ void add_row_sums(const float (&x)[2], float* sums, const Warp& w) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = x[i];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) sums[w.half * kChunk + w.row + lane / 4 + i * 8] += sum;
  }
}

// Row dots of a part with the rows of a tile.
__device__ __forceinline__ void row_dots(Part<8>& d, Tile<128> with, const Warp& w, float (&dots)[2]) {
  dots[0] = dots[1] = 0;
  const int first = w.row + static_cast<int>(threadIdx.x) % 32 / 4;
  tiles::for_each_pair(d, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) {
    const float2 y = __bfloat1622float2(with.pair(i, j));
    dots[i == first ? 0 : 1] += d0 * y.x + d1 * y.y;
  });
}

__device__ __forceinline__ void add_part(Part<8>& to, const Part<8>& from) {
#pragma unroll
  for (int t = 0; t < 8; ++t)
#pragma unroll
    for (int i = 0; i < 4; ++i) to[t][i] += from[t][i];
}

constexpr size_t kGradientBytes = 5 * kRowsOf * 2 + 2 * kState * 2 + 3 * kSquare * 2 + 8 * kChunk * 4;

// Grid: slots, key heads; a block sums over the value heads of its key head.
__global__ void __launch_bounds__(kThreads, 1) gradient_kernel(Inputs x, Gradients out, Memory m, Sizes n) {
  const ChunkPlace c = place_of(x, n, blockIdx.x);
  if (c.rows == 0) return;
  const int key_head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  Shared shared{dynamic_memory};
  const Tile<128> q = shared.tile<128>(kChunk), k = shared.tile<128>(kChunk), d_out = shared.tile<128>(kChunk), v = shared.tile<128>(kChunk), y = shared.tile<128>(kChunk);
  const Tile<128> state = shared.tile<128>(kDim), dstate = shared.tile<128>(kDim);
  const Tile<64> e = shared.tile<64>(kChunk), f = shared.tile<64>(kChunk), inverse = shared.tile<64>(kChunk), f_beta = inverse;  // T is read before beta F is written
  float *sums = shared.floats(kChunk), *beta = shared.floats(kChunk), *of_sums = shared.floats(2 * kChunk), *of_beta = shared.floats(2 * kChunk), *of_last = shared.floats(2 * kChunk);
  const Warp w;
  Part<8> dq = {}, dk = {};
  tiles::copy_rows(q, x.q(c.first, key_head), x.q.token_step, c.rows);
  tiles::copy_rows(k, x.k(c.first, key_head), x.k.token_step, c.rows);
  for (int member = 0; member < n.group(); ++member) {
    const int head = key_head * n.group() + member;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * n.value_heads + head;
    tiles::copy_rows(d_out, out.dout(c.first, head), out.dout.token_step, c.rows);
    tiles::copy_rows(v, m.u + at * kRowsOf, kDim, kChunk);
    tiles::copy_rows(y, m.dv + at * kRowsOf, kDim, kChunk);
    tiles::copy_rows(inverse, m.inverse + at * kSquare, kChunk, kChunk);
    for (int half = 0; half < 2; ++half) {
      tiles::copy_rows(Tile<128>{state.data + half * kRowsOf * 2}, m.states + at * kState + half * kRowsOf, kDim, kChunk);
      tiles::copy_rows(Tile<128>{dstate.data + half * kRowsOf * 2}, m.dstates + at * kState + half * kRowsOf, kDim, kChunk);
    }
    if (thread < kChunk) {
      sums[thread] = m.sums[at * kChunk + thread];
      beta[thread] = thread < c.rows ? x.beta[(c.first + thread) * n.value_heads + head] : 0;
    }
    if (thread < 2 * kChunk) of_sums[thread] = of_beta[thread] = of_last[thread] = 0;
    hopper::copies_done();
    __syncthreads();
    float dots[2];
    {
      Part<8> d = {};
      tiles::add_product<kChunk, Lies::across, Lies::across>(d, inverse, w.row, y, w.half * 64);
      __syncthreads();
      dots[0] = dots[1] = 0;
      tiles::for_each_pair(d, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) {
        y.pair(i, j) = __floats2bfloat162_rn(d0, d1);
        if (i >= c.rows) return;
        const float2 value = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(x.v(c.first + i, head) + j));
        dots[i == w.row + lane / 4 ? 0 : 1] += d0 * value.x + d1 * value.y;
        *reinterpret_cast<__nv_bfloat162*>(out.dv(c.first + i, head) + j) = __floats2bfloat162_rn(beta[i] * d0, beta[i] * d1);
      });
      add_row_sums(dots, of_beta, w);
    }
    __syncthreads();
    {
      Part<4> d = {}, by_y = {};
      tiles::add_product<kDim, Lies::along, Lies::along>(d, d_out, w.row, v, w.half * 32);
      tiles::add_product<kDim, Lies::along, Lies::along>(by_y, y, w.row, v, w.half * 32);
      tiles::for_each_pair(d, w.row, w.half * 32, [&](int i, int j, float& d0, float& d1) {
        e.pair(i, j) = __floats2bfloat162_rn(j <= i ? x.scale * d0 * decay_between(sums, i, j) : 0, j + 1 <= i ? x.scale * d1 * decay_between(sums, i, j + 1) : 0);
      });
      tiles::for_each_pair(by_y, w.row, w.half * 32, [&](int i, int j, float& d0, float& d1) {
        const float f0 = j < i ? -d0 * decay_between(sums, i, j) : 0, f1 = j + 1 < i ? -d1 * decay_between(sums, i, j + 1) : 0;
        f.pair(i, j) = __floats2bfloat162_rn(f0, f1);
        f_beta.pair(i, j) = __floats2bfloat162_rn(beta[i] * f0, beta[i] * f1);
      });
    }
    __syncthreads();
    const float first_gamma = __expf(sums[w.row + lane / 4]), second_gamma = __expf(sums[w.row + lane / 4 + 8]);
    const float first_beta = beta[w.row + lane / 4], second_beta = beta[w.row + lane / 4 + 8];
    const auto scale_rows = [](Part<8>& d, float first, float second) {
#pragma unroll
      for (int t = 0; t < 8; ++t) d[t][0] *= first, d[t][1] *= first, d[t][2] *= second, d[t][3] *= second;
    };
    {
      Part<8> d = {};
      tiles::add_product<kDim, Lies::along, Lies::along>(d, d_out, w.row, state, w.half * 64);
      scale_rows(d, x.scale * first_gamma, x.scale * second_gamma);
      tiles::add_product<kChunk, Lies::along, Lies::across>(d, e, w.row, k, w.half * 64);
      row_dots(d, q, w, dots);
      add_row_sums(dots, of_sums, w);
      add_part(dq, d);
    }
    {
      Part<8> d = {};
      tiles::add_product<kDim, Lies::along, Lies::along>(d, y, w.row, state, w.half * 64);
      scale_rows(d, -first_gamma, -second_gamma);
      tiles::add_product<kChunk, Lies::along, Lies::across>(d, f, w.row, k, w.half * 64);
      row_dots(d, k, w, dots);
      add_row_sums(dots, of_beta, w);
      dots[0] *= first_beta, dots[1] *= second_beta;
      add_row_sums(dots, of_sums, w);
      scale_rows(d, first_beta, second_beta);
      add_part(dk, d);
    }
    {
      Part<8> d = {};
      tiles::add_product<kDim, Lies::along, Lies::along>(d, v, w.row, dstate, w.half * 64);
      const float last = sums[kChunk - 1];
      scale_rows(d, __expf(last - sums[w.row + lane / 4]), __expf(last - sums[w.row + lane / 4 + 8]));
      row_dots(d, k, w, dots);
      add_row_sums(dots, of_last, w);
      tiles::add_product<kChunk, Lies::across, Lies::across>(d, e, w.row, q, w.half * 64);
      tiles::add_product<kChunk, Lies::across, Lies::across>(d, f_beta, w.row, k, w.half * 64);
      row_dots(d, k, w, dots);
      dots[0] = -dots[0], dots[1] = -dots[1];
      add_row_sums(dots, of_sums, w);
      add_part(dk, d);
    }
    float product = 0;
    for (int p = thread; p < kState / 2; p += kThreads) {
      const float2 a = __bfloat1622float2(state.pair(p / 64, p % 64 * 2)), b = __bfloat1622float2(dstate.pair(p / 64, p % 64 * 2));
      product += a.x * b.x + a.y * b.y;
    }
    product = block_sum<kThreads>(product);
    if (thread < 32) {
      float last = warp_sum(of_last[lane] + of_last[lane + 32] + of_last[lane + 64] + of_last[lane + 96]) + __expf(sums[kChunk - 1]) * product;
      // Sums from the last token on, two rows to a lane.
      const float d0 = of_sums[lane * 2] + of_sums[kChunk + lane * 2], d1 = of_sums[lane * 2 + 1] + of_sums[kChunk + lane * 2 + 1];
      float later = d0 + d1;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_down_sync(~0u, later, step);
        if (lane + step < 32) later += other;
      }
      later += last;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = lane * 2 + i;
        if (row >= c.rows) break;
        const int64_t gate = (c.first + row) * n.value_heads + head;
        out.dlog_decay[gate] = i == 0 ? later : later - d0;
        out.dbeta[gate] = of_beta[row] + of_beta[kChunk + row];
      }
    }
    __syncthreads();
  }
  tiles::for_each_pair(dq, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) { d_out.pair(i, j) = __floats2bfloat162_rn(d0, d1); });
  tiles::for_each_pair(dk, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) { v.pair(i, j) = __floats2bfloat162_rn(d0, d1); });
  __syncthreads();
  tiles::store_rows(d_out, out.dq(c.first, key_head), out.dq.token_step, c.rows);
  tiles::store_rows(v, out.dk(c.first, key_head), out.dk.token_step, c.rows);
}

template <typename Kernel, typename... Arguments>
void launch(Kernel kernel, dim3 grid, size_t shared, cudaStream_t stream, const Arguments&... arguments) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "gated_delta");
  kernel<<<grid, kThreads, shared, stream>>>(arguments...);
}

dim3 by_chunk(const Sizes& n, int heads) { return {static_cast<unsigned>(n.slots()), static_cast<unsigned>(heads)}; }
dim3 by_document(const Sizes& n, unsigned halves = 2) { return {halves, static_cast<unsigned>(n.value_heads), grid_for(n.documents, 1, 65535)}; }

void make_states(const Inputs& x, const Memory& m, const ScanEnds& ends, const Sizes& n, cudaStream_t stream) {
  launch(prepare_kernel, by_chunk(n, n.value_heads), kPrepareBytes, stream, x, m, n);
  launch(scan_kernel, by_document(n, ends.map ? 4 : 2), kScanBytes, stream, x, m, ends, n);
}

void make_gradients_of_states(const Inputs& x, const HeadRows<bf16>& dout, const Memory& m, const ScanEnds& ends, const Sizes& n, cudaStream_t stream) {
  launch(local_kernel, by_chunk(n, n.value_heads), kLocalBytes, stream, x, dout, m, n);
  launch(reverse_scan_kernel, by_document(n), kReverseBytes, stream, x, dout, m, ends, n);
}

bool in_pieces(const Tensor& x) {
  return !x.defined() || (x.dtype() == DType::bf16 && x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 && (x.device().is_meta() || reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0));
}

template <typename Op>
bool fits(const Op& g, std::initializer_list<Tensor> others) {
  return g.chunk == kChunk && g.q.size(2) == kDim && g.v.size(2) == kDim && in_pieces(g.q) && in_pieces(g.k) && in_pieces(g.v) && std::all_of(others.begin(), others.end(), in_pieces);
}

}  // namespace

bool gated_delta_chunks_fit(const GatedDelta& g) { return fits(g, {g.o}); }
bool gated_delta_chunks_fit(const GatedDeltaBackward& g) { return fits(g, {g.dout, g.dq, g.dk, g.dv}); }
size_t gated_delta_chunks_workspace_bytes(const GatedDelta& g) { return memory_bytes(Sizes(g), false); }
size_t gated_delta_chunks_workspace_bytes(const GatedDeltaBackward& g) { return memory_bytes(Sizes(g), true); }

void gated_delta_chunks(const GatedDelta& g, const CarriedStates& before) {
  const Sizes n(g);
  if (n.tokens == 0) return;
  const cudaStream_t stream = stream_of(g.stream);
  const Inputs x(g);
  const Memory m = take_memory(g.workspace, n, false);
  make_states(x, m, ScanEnds(before), n, stream);
  launch(output_kernel, by_chunk(n, n.value_heads), kOutputBytes, stream, x, HeadRows<bf16>(g.o), m, n);
  check_launch("gated_delta");
}

void gated_delta_chunks(const GatedDeltaBackward& g, const CarriedStates& before, const CarriedStates& dbehind) {
  const Sizes n(g);
  if (n.tokens == 0) return;
  const cudaStream_t stream = stream_of(g.stream);
  const Inputs x(g);
  const Memory m = take_memory(g.workspace, n, true);
  const HeadRows<bf16> dout(g.dout);
  make_states(x, m, ScanEnds(before), n, stream);
  make_gradients_of_states(x, dout, m, ScanEnds(dbehind), n, stream);
  launch(gradient_kernel, by_chunk(n, n.key_heads), kGradientBytes, stream, x,
         Gradients{dout, HeadRows<bf16>(g.dq), HeadRows<bf16>(g.dk), HeadRows<bf16>(g.dv), g.dlog_decay.f32(), g.dbeta.f32()}, m, n);
  check_launch("gated_delta_backward");
}

void delta_map_chunks(const GatedDelta& run, const Tensor& map, const Tensor& state) {
  const Sizes n(run);
  ScanEnds ends;
  ends.last = state.f32();
  if (map.defined()) ends.map = map.f32();
  make_states(Inputs(run), take_memory(run.workspace, n, false), ends, n, stream_of(run.stream));
  check_launch("delta_map");
}

void delta_map_backward_chunks(const GatedDeltaBackward& run, const Tensor& dstate) {
  const Sizes n(run);
  const Inputs x(run);
  const Memory m = take_memory(run.workspace, n, true);
  ScanEnds ends;
  ends.last = dstate.f32();
  launch(prepare_kernel, by_chunk(n, n.value_heads), kPrepareBytes, stream_of(run.stream), x, m, n);
  make_gradients_of_states(x, HeadRows<bf16>(run.dout), m, ends, n, stream_of(run.stream));
  check_launch("delta_map_backward");
}

}  // namespace hyscale
