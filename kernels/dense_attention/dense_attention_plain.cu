// Dense attention for shapes without a tensor-core form: a block per query and head, a thread per key of a tile, then a thread
// per value dimension. Sums run in a fixed order.
#include "kernels/common/cuda.cuh"
#include "kernels/dense_attention/dense_attention_cuda.h"

namespace hyscale {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) plain_kernel(const bf16* q, const bf16* k, const bf16* v, const int32_t* begin, const int32_t* end, float scale, bf16* out,
                                                         float* lse, int64_t heads, int64_t groups, int64_t dims, int64_t value_dims) {
  extern __shared__ float sums[];  // [value_dims]
  __shared__ float p[kThreads];
  const int64_t t = blockIdx.x, head = blockIdx.y, group = head / (heads / groups), row = t * heads + head;
  for (int64_t d = threadIdx.x; d < value_dims; d += kThreads) sums[d] = 0;
  float most = -INFINITY, sum = 0;
  for (int64_t first = begin[t]; first < end[t]; first += kThreads) {
    const int64_t key = first + threadIdx.x, count = min(int64_t{kThreads}, end[t] - first);
    float x = -INFINITY;
    if (key < end[t]) {
      x = 0;
      for (int64_t d = 0; d < dims; ++d) x = fmaf(to_f32(q[row * dims + d]), to_f32(k[(key * groups + group) * dims + d]), x);
      x *= scale;
    }
    const float now = fmaxf(most, block_max<kThreads>(x)), factor = expf(most - now), mine = expf(x - now);
    most = now;
    sum = sum * factor + block_sum<kThreads>(mine);
    p[threadIdx.x] = mine;
    __syncthreads();
    for (int64_t d = threadIdx.x; d < value_dims; d += kThreads) {
      float value = sums[d] * factor;
      for (int64_t j = 0; j < count; ++j) value = fmaf(p[j], to_f32(v[((first + j) * groups + group) * value_dims + d]), value);
      sums[d] = value;
    }
    __syncthreads();
  }
  for (int64_t d = threadIdx.x; d < value_dims; d += kThreads) out[row * value_dims + d] = from_f32<bf16>(begin[t] < end[t] ? sums[d] / sum : 0);
  if (threadIdx.x == 0) lse[row] = most + logf(sum);
}

}  // namespace

void dense_attention_plain_cuda(const DenseAttention& a) {
  const size_t shared = static_cast<size_t>(a.v.size(2)) * sizeof(float);
  HYSCALE_CHECK(shared <= 40u << 10, "dense attention with values of ", a.v.size(2), " on CUDA: the plain form holds up to 10240");
  const dim3 grid(static_cast<unsigned>(a.q.size(0)), static_cast<unsigned>(a.q.size(1)));
  plain_kernel<<<grid, kThreads, shared, stream_of(a.stream)>>>(a.q.data<bf16>(), a.k.data<bf16>(), a.v.data<bf16>(), a.begin.i32(), a.end.i32(), a.scale,
                                                               a.out.data<bf16>(), a.lse.f32(), a.q.size(1), a.k.size(1), a.q.size(2), a.v.size(2));
  check_launch("dense_attention plain");
}

}  // namespace hyscale
