// One warp per row.
#include "kernels/common/head_rows.cuh"
#include "kernels/common/packs.cuh"
#include "kernels/l2_norm/l2_norm.h"

namespace hyscale {
namespace {

constexpr int kWarps = 8;

template <typename T, int kWidth>
__global__ void l2_norm_kernel(HeadRows<T> from, HeadRows<T> to, float eps, float* __restrict__ rs, int64_t rows, int64_t heads, int64_t dims) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; row < rows; row += static_cast<int64_t>(gridDim.x) * kWarps) {
    const T* x = from.row(row, heads);
    T* y = to.row(row, heads);
    float v[kWidth], squares = 0;
    for (int64_t d = lane * kWidth; d < dims; d += 32 * kWidth) {
      load_pack(x + d, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) squares += v[i] * v[i];
    }
    const float r = rsqrtf(warp_sum(squares) + eps);
    for (int64_t d = lane * kWidth; d < dims; d += 32 * kWidth) {
      load_pack(x + d, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v[i] *= r;
      store_pack(y + d, v);
    }
    if (lane == 0) rs[row] = r;
  }
}

// dx may be the memory of dy: every element is read before it is written by the same thread.
template <typename T, int kWidth>
__global__ void l2_norm_backward_kernel(HeadRows<T> ys, const float* __restrict__ rs, HeadRows<T> dys, HeadRows<T> dxs, int64_t rows, int64_t heads, int64_t dims) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; row < rows; row += static_cast<int64_t>(gridDim.x) * kWarps) {
    const T *y = ys.row(row, heads), *dy = dys.row(row, heads);
    T* dx = dxs.row(row, heads);
    float v[kWidth], d[kWidth], dot = 0;
    for (int64_t c = lane * kWidth; c < dims; c += 32 * kWidth) {
      load_pack(y + c, v);
      load_pack(dy + c, d);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) dot += v[i] * d[i];
    }
    dot = warp_sum(dot);
    const float r = rs[row];
    for (int64_t c = lane * kWidth; c < dims; c += 32 * kWidth) {
      load_pack(y + c, v);
      load_pack(dy + c, d);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) d[i] = r * (d[i] - v[i] * dot);
      store_pack(dx + c, d);
    }
  }
}

}  // namespace

void l2_norm_cuda(const L2Norm& n) {
  const int64_t heads = n.x.size(1), rows = n.x.size(0) * heads, dims = n.x.size(2);
  if (rows == 0) return;
  with_packs("l2_norm", dims, [&](auto type, auto pack) {
    using T = decltype(type);
    l2_norm_kernel<T, pack><<<grid_for(rows, kWarps), kWarps * 32, 0, stream_of(n.stream)>>>(HeadRows<T>(n.x), HeadRows<T>(n.y), n.eps, n.r.f32(), rows, heads, dims);
  }, n.x, n.y);
}

void l2_norm_backward_cuda(const L2NormBackward& n) {
  const int64_t heads = n.y.size(1), rows = n.y.size(0) * heads, dims = n.y.size(2);
  if (rows == 0) return;
  with_packs("l2_norm_backward", dims, [&](auto type, auto pack) {
    using T = decltype(type);
    l2_norm_backward_kernel<T, pack><<<grid_for(rows, kWarps), kWarps * 32, 0, stream_of(n.stream)>>>(HeadRows<T>(n.y), n.r.f32(), HeadRows<T>(n.dy), HeadRows<T>(n.dx), rows, heads, dims);
  }, n.y, n.dy, n.dx);
}

}  // namespace hyscale
