// O of each chunk by the state at its start and its own V', and the chunk's own part of dV'.
#include "kernels/gated_delta/delta_chunks.cuh"

namespace hyscale::delta_chunks {
namespace {

constexpr size_t kOutputBytes = 3 * kRowsOf * 2 + kState * 2 + kSquare * 2 + 2 * kChunk * 4;

// Grid: slots, value heads.
__global__ void __launch_bounds__(kThreads, 2) output_kernel(Inputs x, HeadRows<bf16> o, Memory m, Sizes n) {
  const ChunkPlace c = place_of(x, n, blockIdx.x);
  if (c.rows == 0) return;
  const int head = static_cast<int>(blockIdx.y);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * n.value_heads + head;
  Shared shared{dynamic_memory};
  const Rows q = shared.tile<Rows>(), k = shared.tile<Rows>(), v = shared.tile<Rows>();
  const State state = shared.tile<State>();
  const Square attention = shared.tile<Square>();
  float* sums = shared.floats(kChunk);
  tiles::copy_rows(q, x.q(c.first, head / n.group()), x.q.token_step, c.rows);
  tiles::copy_rows(k, x.k(c.first, head / n.group()), x.k.token_step, c.rows);
  tiles::copy_rows(v, m.u + at * kRowsOf, kDim, kChunk);
  tiles::copy_rows(state, m.states + at * kState, kDim, kDim);
  copy_sums(sums, m.sums + at * kChunk);
  hopper::copies_done();
  tiles::publish();
  const Warp w;
  Part<8> out = {};
  {
    Part<4> d = {};
    hopper::wgmma_begin();
    tiles::add_product<kDim, Lies::along, Lies::along>(d, q, 0, k, w.half * 32);
    tiles::add_product<kDim, Lies::along, Lies::across>(out, q, 0, state, w.half * 64);
    tiles::products_done(d, out);
    tiles::for_each_pair(d, w.row, w.half * 32, [&](int i, int j, float& d0, float& d1) {
      attention.pair(i, j) = __floats2bfloat162_rn(j <= i ? d0 * decay_between(sums, i, j) : 0, j + 1 <= i ? d1 * decay_between(sums, i, j + 1) : 0);
    });
  }
  tiles::for_each_pair(out, w.row, 0, [&](int i, int, float& d0, float& d1) { d0 *= __expf(sums[i]), d1 *= __expf(sums[i]); });
  tiles::publish();
  hopper::wgmma_begin();
  tiles::add_product<kChunk, Lies::along, Lies::across>(out, attention, 0, v, w.half * 64);
  tiles::products_done(out);
  tiles::for_each_pair(out, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) { k.pair(i, j) = __floats2bfloat162_rn(x.scale * d0, x.scale * d1); });
  __syncthreads();
  tiles::store_rows(k, o(c.first, head), o.token_step, c.rows);
}

constexpr size_t kLocalBytes = 3 * kRowsOf * 2 + kSquare * 2 + kChunk * 4;

// dV' by the chunk's own outputs: scale E0^T dO. Grid: slots, value heads.
__global__ void __launch_bounds__(kThreads, 2) local_kernel(Inputs x, HeadRows<bf16> dout, Memory m, Sizes n) {
  const ChunkPlace c = place_of(x, n, blockIdx.x);
  if (c.rows == 0) return;
  const int head = static_cast<int>(blockIdx.y);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * n.value_heads + head;
  Shared shared{dynamic_memory};
  const Rows q = shared.tile<Rows>(), k = shared.tile<Rows>(), d_out = shared.tile<Rows>();
  const Square attention = shared.tile<Square>();
  float* sums = shared.floats(kChunk);
  tiles::copy_rows(q, x.q(c.first, head / n.group()), x.q.token_step, c.rows);
  tiles::copy_rows(k, x.k(c.first, head / n.group()), x.k.token_step, c.rows);
  tiles::copy_rows(d_out, dout(c.first, head), dout.token_step, c.rows);
  copy_sums(sums, m.sums + at * kChunk);
  hopper::copies_done();
  tiles::publish();
  const Warp w;
  Part<4> d = {};
  hopper::wgmma_begin();
  tiles::add_product<kDim, Lies::along, Lies::along>(d, q, 0, k, w.half * 32);
  tiles::products_done(d);
  tiles::for_each_pair(d, w.row, w.half * 32, [&](int i, int j, float& d0, float& d1) {
    attention.pair(i, j) = __floats2bfloat162_rn(j <= i ? x.scale * d0 * decay_between(sums, i, j) : 0, j + 1 <= i ? x.scale * d1 * decay_between(sums, i, j + 1) : 0);
  });
  tiles::publish();
  Part<8> dv = {};
  hopper::wgmma_begin();
  tiles::add_product<kChunk, Lies::across, Lies::across>(dv, attention, 0, d_out, w.half * 64);
  tiles::products_done(dv);
  tiles::for_each_pair(dv, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) { k.pair(i, j) = __floats2bfloat162_rn(d0, d1); });
  __syncthreads();
  tiles::store_rows(k, m.dv + at * kRowsOf, kDim, kChunk);
}

}  // namespace

void outputs(const Inputs& x, HeadRows<bf16> o, const Memory& m, const Sizes& n, cudaStream_t stream) {
  launch(output_kernel, by_chunk(n, n.value_heads), kOutputBytes, stream, x, o, m, n);
}
void local_gradients(const Inputs& x, HeadRows<bf16> dout, const Memory& m, const Sizes& n, cudaStream_t stream) {
  launch(local_kernel, by_chunk(n, n.value_heads), kLocalBytes, stream, x, dout, m, n);
}

}  // namespace hyscale::delta_chunks
