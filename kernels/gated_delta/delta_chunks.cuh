// What the kernels of the chunk form share: sizes, the chunks' numbering, what lies in memory between kernels, gates.
// Heads of 128, chunks of 64. Tokens beyond a document's end count as zeros with beta 0 and no decay.
#pragma once
#include "kernels/common/head_rows.cuh"
#include "kernels/common/op.h"
#include "kernels/gated_delta/gated_delta_cuda.h"
#include "kernels/gated_delta/scan_ends.cuh"
#include "kernels/gated_delta/tiles.cuh"

namespace hyscale::delta_chunks {

using tiles::Lies;
using tiles::Part;
using tiles::Tile;
using tiles::kThreads;

constexpr int kChunk = 64, kDim = 128;
constexpr int64_t kRowsOf = kChunk * kDim, kState = kDim * kDim, kSquare = kChunk * kChunk;
using Rows = Tile<kChunk, kDim>;
using State = Tile<kDim, kDim>;
using Square = Tile<kChunk, kChunk>;

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
__device__ inline ChunkPlace place_of(const Inputs& x, const Sizes& n, int64_t slot) {
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
inline size_t memory_bytes(const Sizes& n, bool backward) {
  size_t bytes = 0;
  take_memory(n, backward, [&](auto*& p, int64_t count) { bytes += aligned_bytes(static_cast<size_t>(count) * sizeof(*p)); });
  return bytes;
}
inline Memory take_memory(const Tensor& workspace, const Sizes& n, bool backward) {
  Workspace w(workspace);
  return take_memory(n, backward, [&]<typename T>(T*& p, int64_t count) { p = w.take<T>(count); });
}

// Pieces of dynamic shared memory.
struct Shared {
  unsigned char* next;
  template <typename AnyTile>
  __device__ AnyTile tile() {
    const AnyTile t{next};
    next += AnyTile::kBytes;
    return t;
  }
  __device__ float* floats(int count) {
    float* p = reinterpret_cast<float*>(next);
    next += count * 4;
    return p;
  }
};
extern __shared__ __align__(1024) unsigned char dynamic_memory[];

// A warp's place in a result of 64 rows: its 16 rows, and its warpgroup's half of the columns.
struct Warp {
  int row = static_cast<int>(threadIdx.x) / 32 % 4 * 16, half = static_cast<int>(threadIdx.x) / 128;
};

// sums[64] becomes G and beta[64] the chunk's betas; by the first warp.
__device__ inline void load_gates(const Inputs& x, const Sizes& n, ChunkPlace c, int head, float* sums, float* beta) {
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

// Starts a copy of a chunk's G.
__device__ __forceinline__ void copy_sums(float* to, const float* from) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kChunk / 4) hopper::copy16(hopper::shared_address(to + thread * 4), from + thread * 4, true);
}

template <typename Kernel, typename... Arguments>
void launch(Kernel kernel, dim3 grid, size_t shared, cudaStream_t stream, const Arguments&... arguments) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "gated_delta");
  kernel<<<grid, kThreads, shared, stream>>>(arguments...);
}
inline dim3 by_chunk(const Sizes& n, int heads) { return {static_cast<unsigned>(n.slots()), static_cast<unsigned>(heads)}; }

struct Gradients {
  HeadRows<bf16> dout, dq, dk, dv;
  float *dlog_decay, *dbeta;
};

// The kernels in their order; of memory each reads what those before it wrote.
void prepare(const Inputs&, const Memory&, const Sizes&, cudaStream_t);                            // U, W, G, T
void scan(const Inputs&, const Memory&, const ScanEnds&, const Sizes&, cudaStream_t);                // S, V'
void outputs(const Inputs&, HeadRows<bf16> o, const Memory&, const Sizes&, cudaStream_t);          // O
void local_gradients(const Inputs&, HeadRows<bf16> dout, const Memory&, const Sizes&, cudaStream_t);  // scale E0^T dO
void reverse_scan(const Inputs&, HeadRows<bf16> dout, const Memory&, const ScanEnds&, const Sizes&, cudaStream_t);  // dS, dV'
void gradients(const Inputs&, const Gradients&, const Memory&, const Sizes&, cudaStream_t);

}  // namespace hyscale::delta_chunks
