// Gradients of a chunk's inputs, given the states around it and dV' of its rows.
#include "kernels/gated_delta/delta_chunks.cuh"

namespace hyscale::delta_chunks {
namespace {

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
__device__ __forceinline__ void row_dots(Part<8>& d, Rows with, const Warp& w, float (&dots)[2]) {
  dots[0] = dots[1] = 0;
  const int first = w.row + static_cast<int>(threadIdx.x) % 32 / 4;
  tiles::for_each_pair(d, w.row, w.half * 64, [&](int i, int j, float& d0, float& d1) {
    const float2 y = __bfloat1622float2(with.pair(i, j));
    dots[i == first ? 0 : 1] += d0 * y.x + d1 * y.y;
  });
}

__device__ __forceinline__ void add_part(Part<8>& to, const Part<8>& from) {
#pragma unroll
  for (int i = 0; i < 32; ++i) to[i] += from[i];
}

constexpr size_t kGradientBytes = 5 * kRowsOf * 2 + 2 * kState * 2 + 3 * kSquare * 2 + 8 * kChunk * 4;

// Grid: slots, key heads; a block sums over the value heads of its key head.
__global__ void __launch_bounds__(kThreads, 1) gradient_kernel(Inputs x, Gradients out, Memory m, Sizes n) {
  const ChunkPlace c = place_of(x, n, blockIdx.x);
  if (c.rows == 0) return;
  const int key_head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  Shared shared{dynamic_memory};
  const Rows q = shared.tile<Rows>(), k = shared.tile<Rows>(), d_out = shared.tile<Rows>(), v = shared.tile<Rows>(), y = shared.tile<Rows>();
  const State state = shared.tile<State>(), dstate = shared.tile<State>();
  const Square e = shared.tile<Square>(), f = shared.tile<Square>(), inverse = shared.tile<Square>(), f_beta = inverse;  // T is read before beta F is written
  float *sums = shared.floats(kChunk), *beta = shared.floats(kChunk), *of_sums = shared.floats(2 * kChunk), *of_beta = shared.floats(2 * kChunk), *of_last = shared.floats(2 * kChunk);
  const Warp w;
  Part<8> dq = {}, dk = {};
  tiles::copy_rows(q, x.q(c.first, key_head), x.q.token_step, c.rows);
  tiles::copy_rows(k, x.k(c.first, key_head), x.k.token_step, c.rows);
#pragma unroll 1
  for (int member = 0; member < n.group(); ++member) {
    const int head = key_head * n.group() + member;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * n.value_heads + head;
    tiles::copy_rows(d_out, out.dout(c.first, head), out.dout.token_step, c.rows);
    tiles::copy_rows(v, m.u + at * kRowsOf, kDim, kChunk);
    tiles::copy_rows(y, m.dv + at * kRowsOf, kDim, kChunk);
    tiles::copy_rows(inverse, m.inverse + at * kSquare, kChunk, kChunk);
    copy_sums(sums, m.sums + at * kChunk);
    hopper::copies_commit();
    tiles::copy_rows(state, m.states + at * kState, kDim, kDim);
    tiles::copy_rows(dstate, m.dstates + at * kState, kDim, kDim);
    hopper::copies_commit();
    if (thread < kChunk) beta[thread] = thread < c.rows ? x.beta[(c.first + thread) * n.value_heads + head] : 0;
    if (thread < 2 * kChunk) of_sums[thread] = of_beta[thread] = of_last[thread] = 0;
    hopper::copies_wait<1>();
    tiles::publish();
    float dots[2];
    {
      Part<8> d = {};
      hopper::wgmma_begin();
      tiles::add_product<kChunk, Lies::across, Lies::across>(d, inverse, 0, y, w.half * 64);
      tiles::products_done(d);
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
    tiles::publish();
    {
      Part<4> d = {}, by_y = {};
      hopper::wgmma_begin();
      tiles::add_product<kDim, Lies::along, Lies::along>(d, d_out, 0, v, w.half * 32);
      tiles::add_product<kDim, Lies::along, Lies::along>(by_y, y, 0, v, w.half * 32);
      tiles::products_done(d, by_y);
      tiles::for_each_pair(d, w.row, w.half * 32, [&](int i, int j, float& d0, float& d1) {
        e.pair(i, j) = __floats2bfloat162_rn(j <= i ? x.scale * d0 * decay_between(sums, i, j) : 0, j + 1 <= i ? x.scale * d1 * decay_between(sums, i, j + 1) : 0);
      });
      tiles::for_each_pair(by_y, w.row, w.half * 32, [&](int i, int j, float& d0, float& d1) {
        const float f0 = j < i ? -d0 * decay_between(sums, i, j) : 0, f1 = j + 1 < i ? -d1 * decay_between(sums, i, j + 1) : 0;
        f.pair(i, j) = __floats2bfloat162_rn(f0, f1);
        f_beta.pair(i, j) = __floats2bfloat162_rn(beta[i] * f0, beta[i] * f1);
      });
    }
    hopper::copies_done();
    tiles::publish();
    const float first_gamma = __expf(sums[w.row + lane / 4]), second_gamma = __expf(sums[w.row + lane / 4 + 8]);
    const float first_beta = beta[w.row + lane / 4], second_beta = beta[w.row + lane / 4 + 8];
    const auto scale_rows = [](Part<8>& d, float first, float second) {
#pragma unroll
      for (int i = 0; i < 32; ++i) d[i] *= i % 4 < 2 ? first : second;
    };
    {
      Part<8> d = {};
      hopper::wgmma_begin();
      tiles::add_product<kDim, Lies::along, Lies::along>(d, d_out, 0, state, w.half * 64);
      tiles::products_done(d);
      scale_rows(d, x.scale * first_gamma, x.scale * second_gamma);
      hopper::wgmma_begin();
      tiles::add_product<kChunk, Lies::along, Lies::across>(d, e, 0, k, w.half * 64);
      tiles::products_done(d);
      row_dots(d, q, w, dots);
      add_row_sums(dots, of_sums, w);
      add_part(dq, d);
    }
    {
      Part<8> d = {};
      hopper::wgmma_begin();
      tiles::add_product<kDim, Lies::along, Lies::along>(d, y, 0, state, w.half * 64);
      tiles::products_done(d);
      scale_rows(d, -first_gamma, -second_gamma);
      hopper::wgmma_begin();
      tiles::add_product<kChunk, Lies::along, Lies::across>(d, f, 0, k, w.half * 64);
      tiles::products_done(d);
      row_dots(d, k, w, dots);
      add_row_sums(dots, of_beta, w);
      dots[0] *= first_beta, dots[1] *= second_beta;
      add_row_sums(dots, of_sums, w);
      scale_rows(d, first_beta, second_beta);
      add_part(dk, d);
    }
    {
      Part<8> d = {};
      hopper::wgmma_begin();
      tiles::add_product<kDim, Lies::along, Lies::along>(d, v, 0, dstate, w.half * 64);
      tiles::products_done(d);
      const float last = sums[kChunk - 1];
      scale_rows(d, __expf(last - sums[w.row + lane / 4]), __expf(last - sums[w.row + lane / 4 + 8]));
      row_dots(d, k, w, dots);
      add_row_sums(dots, of_last, w);
      hopper::wgmma_begin();
      tiles::add_product<kChunk, Lies::across, Lies::across>(d, e, 0, q, w.half * 64);
      tiles::add_product<kChunk, Lies::across, Lies::across>(d, f_beta, 0, k, w.half * 64);
      tiles::products_done(d);
      row_dots(d, k, w, dots);
      dots[0] = -dots[0], dots[1] = -dots[1];
      add_row_sums(dots, of_sums, w);
      add_part(dk, d);
    }
    float product = 0;
#pragma unroll 2
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

}  // namespace

void gradients(const Inputs& x, const Gradients& out, const Memory& m, const Sizes& n, cudaStream_t stream) {
  launch(gradient_kernel, by_chunk(n, n.key_heads), kGradientBytes, stream, x, out, m, n);
}

}  // namespace hyscale::delta_chunks
