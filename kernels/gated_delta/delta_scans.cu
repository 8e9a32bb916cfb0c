// The two passes over a document's chunks in order: states forwards, their gradients backwards. The state stays f32 in registers, 64 of its
// columns to a block and 64 of its rows to a warpgroup; of each chunk it is rounded once, for the product and for memory.
#include "kernels/gated_delta/delta_chunks.cuh"

namespace hyscale::delta_chunks {
namespace {

constexpr int kStages = 3;  // chunks whose rows are in shared memory or on their way
using HalfState = Tile<kDim, 64>;

// Where a block is: half of the columns, value head, document.
struct Place {
  int half = static_cast<int>(blockIdx.x) % 2, head = static_cast<int>(blockIdx.y);
  int64_t begin, length, slot, chunks, heads;
  __device__ Place(const Inputs& x, const Sizes& n, int64_t document)
      : begin(x.starts[document]), length(x.starts[document + 1] - begin), slot(begin / kChunk + document), chunks((length + kChunk - 1) / kChunk), heads(n.value_heads) {}
  __device__ int64_t at(int64_t i) const { return (slot + i) * heads + head; }
  __device__ int64_t first(int64_t i) const { return begin + i * kChunk; }
  __device__ int rows(int64_t i) const { return static_cast<int>(min(length - i * kChunk, int64_t{kChunk})); }
};

// step(stage, i, next) for each chunk, its rows copied by load(stage, i); `next` starts a copy into the stage of the chunk before, so every thread
// calls it once all are past that chunk.
template <bool kBackwards, typename Load, typename Step>
__device__ __forceinline__ void for_each_chunk(int64_t chunks, Load load, Step step) {
  const auto start = [&](int64_t n) {
    if (n < chunks) load(static_cast<int>(n % kStages), kBackwards ? chunks - 1 - n : n);
    hopper::copies_commit();
  };
  __syncthreads();
  for (int n = 0; n < kStages - 1; ++n) start(n);
  for (int64_t n = 0; n < chunks; ++n) {
    hopper::copies_wait<kStages - 2>();
    step(static_cast<int>(n % kStages), kBackwards ? chunks - 1 - n : n, [&] { start(n + kStages - 1); });
  }
}

// The state in registers to shared memory, seen by products together with the copies of the chunk.
__device__ __forceinline__ void publish_state(Part<8>& state, HalfState to) {
  tiles::for_each_pair(state, static_cast<int>(threadIdx.x) / 32 * 16, 0, [&](int i, int j, float& d0, float& d1) { to.pair(i, j) = __floats2bfloat162_rn(d0, d1); });
  tiles::publish();
}

// f32 states at the ends of a scan, the 64 columns from `column` on of a [128, 128] one; or null.
__device__ __forceinline__ int state_row() { return static_cast<int>(threadIdx.x) / 32 * 16; }
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
  for (int i = 0; i < 32; ++i) d[i] *= factor;
}

constexpr size_t kScanStage = 2 * Rows::kBytes + Square::kBytes, kScanBytes = kStages * (kScanStage + kChunk * 4) + HalfState::kBytes + Square::kBytes;

// States at chunk starts, and V' in place of U. Grid: halves of the columns, value heads, documents. Two more halves are those of the
// map: what becomes of the identity where all values are zero.
__global__ void __launch_bounds__(kThreads, 1) scan_kernel(Inputs x, Memory m, ScanEnds ends, Sizes n) {
  const bool of_map = blockIdx.x >= 2;
  struct Stage {
    Rows w, k;
    Square u;
    float* sums;
    __device__ explicit Stage(int i) {
      Shared from{dynamic_memory + i * kScanStage};
      w = from.tile<Rows>(), k = from.tile<Rows>(), u = from.tile<Square>();
      sums = reinterpret_cast<float*>(dynamic_memory + kStages * kScanStage + HalfState::kBytes + Square::kBytes) + i * kChunk;
    }
  };
  Shared shared{dynamic_memory + kStages * kScanStage};
  const HalfState state_tile = shared.tile<HalfState>();
  const Square values = shared.tile<Square>();
  const Warp warp;
  for (int64_t document = blockIdx.z; document < n.documents; document += gridDim.z) {
    const Place p(x, n, document);
    Part<8> state = {};
    if (of_map)
      tiles::for_each_pair(state, state_row(), p.half * 64, [](int i, int j, float& d0, float& d1) { d0 = i == j, d1 = i == j + 1; });
    else
      load_first_state(state, ends.carried(document, p.head, n.value_heads, kState), p.half * 64);
    const auto load = [&](int stage, int64_t i) {
      const Stage s(stage);
      tiles::copy_rows(s.w, m.w + p.at(i) * kRowsOf, kDim, kChunk);
      tiles::copy_rows(s.k, x.k(p.first(i), p.head / n.group()), x.k.token_step, p.rows(i));
      tiles::copy_rows(s.u, m.u + p.at(i) * kRowsOf + p.half * 64, kDim, of_map ? 0 : kChunk);
      copy_sums(s.sums, m.sums + p.at(i) * kChunk);
    };
    for_each_chunk<false>(p.chunks, load, [&](int stage, int64_t i, auto next) {
      const Stage s(stage);
      publish_state(state, state_tile);
      Part<4> moved = {};
      hopper::wgmma_begin();
      tiles::add_product<kDim, Lies::along, Lies::across>(moved, s.w, 0, state_tile, warp.half * 32);
      hopper::wgmma_commit();
      next();
      if (!of_map) tiles::store_rows(state_tile, m.states + p.at(i) * kState + p.half * 64, kDim, kDim);
      tiles::products_done(moved);
      const float last = s.sums[kChunk - 1];
      tiles::for_each_pair(moved, warp.row, warp.half * 32, [&](int r, int c, float& d0, float& d1) {
        const float2 u = __bfloat1622float2(s.u.pair(r, c));
        const float v0 = u.x - d0, v1 = u.y - d1, rest = __expf(last - s.sums[r]);
        values.pair(r, c) = __floats2bfloat162_rn(v0, v1);
        s.u.pair(r, c) = __floats2bfloat162_rn(v0 * rest, v1 * rest);
      });
      scale_part(state, __expf(last));
      tiles::publish();
      hopper::wgmma_begin();
      tiles::add_product<kChunk, Lies::across, Lies::across>(state, s.k, warp.half * 64, s.u, 0);
      hopper::wgmma_commit();
      if (!of_map) tiles::store_rows(values, m.u + p.at(i) * kRowsOf + p.half * 64, kDim, kChunk);
      tiles::products_done(state);
    });
    float* last = of_map ? ends.map : ends.last;
    store_last_state(state, last ? last + (document * n.value_heads + p.head) * kState : nullptr, p.half * 64);
  }
}

constexpr size_t kReverseStage = 3 * Rows::kBytes + 2 * Square::kBytes, kReverseBytes = kStages * (kReverseStage + kChunk * 4) + HalfState::kBytes + Square::kBytes;

// dS of what follows each chunk, and dV' in place of its local part. Grid: halves of the columns, value heads, documents.
__global__ void __launch_bounds__(kThreads, 1) reverse_scan_kernel(Inputs x, HeadRows<bf16> dout, Memory m, ScanEnds ends, Sizes n) {
  struct Stage {
    Rows w, k, q;
    Square dv, dout;
    float* sums;
    __device__ explicit Stage(int i) {
      Shared from{dynamic_memory + i * kReverseStage};
      w = from.tile<Rows>(), k = from.tile<Rows>(), q = from.tile<Rows>(), dv = from.tile<Square>(), dout = from.tile<Square>();
      sums = reinterpret_cast<float*>(dynamic_memory + kStages * kReverseStage + HalfState::kBytes + Square::kBytes) + i * kChunk;
    }
  };
  Shared shared{dynamic_memory + kStages * kReverseStage};
  const HalfState state_tile = shared.tile<HalfState>();
  const Square values = shared.tile<Square>();
  const Warp warp;
  for (int64_t document = blockIdx.z; document < n.documents; document += gridDim.z) {
    const Place p(x, n, document);
    Part<8> state = {};
    load_first_state(state, ends.carried(document, p.head, n.value_heads, kState), p.half * 64);
    const auto load = [&](int stage, int64_t i) {
      const Stage s(stage);
      tiles::copy_rows(s.w, m.w + p.at(i) * kRowsOf, kDim, kChunk);
      tiles::copy_rows(s.k, x.k(p.first(i), p.head / n.group()), x.k.token_step, p.rows(i));
      tiles::copy_rows(s.q, x.q(p.first(i), p.head / n.group()), x.q.token_step, p.rows(i));
      tiles::copy_rows(s.dv, m.dv + p.at(i) * kRowsOf + p.half * 64, kDim, kChunk);
      tiles::copy_rows(s.dout, dout(p.first(i), p.head) + p.half * 64, dout.token_step, p.rows(i));
      copy_sums(s.sums, m.sums + p.at(i) * kChunk);
    };
    for_each_chunk<true>(p.chunks, load, [&](int stage, int64_t i, auto next) {
      const Stage s(stage);
      publish_state(state, state_tile);
      Part<4> moved = {};
      hopper::wgmma_begin();
      tiles::add_product<kDim, Lies::along, Lies::across>(moved, s.k, 0, state_tile, warp.half * 32);
      hopper::wgmma_commit();
      next();
      tiles::store_rows(state_tile, m.dstates + p.at(i) * kState + p.half * 64, kDim, kDim);
      for (int pair = static_cast<int>(threadIdx.x); pair < kChunk * 32; pair += kThreads) {
        const int r = pair / 32, c = pair % 32 * 2;
        const float2 d = __bfloat1622float2(s.dout.pair(r, c));
        const float factor = x.scale * __expf(s.sums[r]);
        s.dout.pair(r, c) = __floats2bfloat162_rn(factor * d.x, factor * d.y);
      }
      tiles::products_done(moved);
      const float last = s.sums[kChunk - 1];
      tiles::for_each_pair(moved, warp.row, warp.half * 32, [&](int r, int c, float& d0, float& d1) {
        const float2 local = __bfloat1622float2(s.dv.pair(r, c));
        const float rest = __expf(last - s.sums[r]), v0 = local.x + rest * d0, v1 = local.y + rest * d1;
        values.pair(r, c) = __floats2bfloat162_rn(v0, v1);
        s.dv.pair(r, c) = __floats2bfloat162_rn(-v0, -v1);
      });
      scale_part(state, __expf(last));
      tiles::publish();
      hopper::wgmma_begin();
      tiles::add_product<kChunk, Lies::across, Lies::across>(state, s.q, warp.half * 64, s.dout, 0);
      tiles::add_product<kChunk, Lies::across, Lies::across>(state, s.w, warp.half * 64, s.dv, 0);
      hopper::wgmma_commit();
      tiles::store_rows(values, m.dv + p.at(i) * kRowsOf + p.half * 64, kDim, kChunk);
      tiles::products_done(state);
    });
    store_last_state(state, ends.last ? ends.last + (document * n.value_heads + p.head) * kState : nullptr, p.half * 64);
  }
}

dim3 by_document(const Sizes& n, unsigned halves) { return {halves, static_cast<unsigned>(n.value_heads), grid_for(n.documents, 1, 65535)}; }

}  // namespace

void scan(const Inputs& x, const Memory& m, const ScanEnds& ends, const Sizes& n, cudaStream_t stream) {
  launch(scan_kernel, by_document(n, ends.map ? 4 : 2), kScanBytes, stream, x, m, ends, n);
}
void reverse_scan(const Inputs& x, HeadRows<bf16> dout, const Memory& m, const ScanEnds& ends, const Sizes& n, cudaStream_t stream) {
  launch(reverse_scan_kernel, by_document(n, 2), kReverseBytes, stream, x, dout, m, ends, n);
}

}  // namespace hyscale::delta_chunks
