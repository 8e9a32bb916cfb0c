// What a chunk makes of its own tokens, on tensor cores: (I + A) and its inverse T in f32 and tf32, U and W.
#include "kernels/gated_delta/delta_inverse.cuh"

namespace hyscale::delta_chunks {
namespace {

constexpr size_t kPrepareBytes = 2 * kRowsOf * 2 + 2 * kSquare * 2 + 2 * kChunk * kStep * 4 + 1280 * 4 + 2 * kChunk * 4;

// U, W, G and, for backward, T. Grid: slots, value heads.
__global__ void __launch_bounds__(kThreads, 2) prepare_kernel(Inputs x, Memory m, Sizes n) {
  const ChunkPlace c = place_of(x, n, blockIdx.x);
  if (c.rows == 0) return;
  const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * n.value_heads + head;
  Shared shared{dynamic_memory};
  const Rows k = shared.tile<Rows>(), v = shared.tile<Rows>();
  const Square t_beta = shared.tile<Square>(), t_gamma = shared.tile<Square>();
  float *a = shared.floats(kChunk * kStep), *t = shared.floats(kChunk * kStep), *scratch = shared.floats(1280), *sums = shared.floats(kChunk), *beta = shared.floats(kChunk);
  tiles::copy_rows(k, x.k(c.first, head / n.group()), x.k.token_step, c.rows);
  tiles::copy_rows(v, x.v(c.first, head), x.v.token_step, c.rows);
  load_gates(x, n, c, head, sums, beta);
  hopper::copies_done();
  tiles::publish();
  const Warp w;
  {
    Part<4> d = {};
    hopper::wgmma_begin();
    tiles::add_product<kDim, Lies::along, Lies::along>(d, k, 0, k, w.half * 32);
    tiles::products_done(d);
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
  tiles::publish();
  Part<8> u = {}, key = {};
  hopper::wgmma_begin();
  tiles::add_product<kChunk, Lies::along, Lies::across>(u, t_beta, 0, v, w.half * 64);
  tiles::add_product<kChunk, Lies::along, Lies::across>(key, t_gamma, 0, k, w.half * 64);
  tiles::products_done(u, key);
  __syncthreads();
  tiles::for_each_pair(u, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) { v.pair(i, j) = __floats2bfloat162_rn(d0, d1); });
  tiles::for_each_pair(key, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) { k.pair(i, j) = __floats2bfloat162_rn(d0, d1); });
  __syncthreads();
  tiles::store_rows(v, m.u + at * kRowsOf, kDim, kChunk);
  tiles::store_rows(k, m.w + at * kRowsOf, kDim, kChunk);
}

}  // namespace

void prepare(const Inputs& x, const Memory& m, const Sizes& n, cudaStream_t stream) {
  launch(prepare_kernel, by_chunk(n, n.value_heads), kPrepareBytes, stream, x, m, n);
}

}  // namespace hyscale::delta_chunks
