// The same pieces for shapes without a tensor-core form: a thread per pair, then a block per row of a gradient. Sums run in a
// fixed order. Meant for small models and tests.
#include "kernels/common/cuda.cuh"
#include "kernels/dense_index_loss/dense_index_loss_cuda.h"

namespace hyscale::dense_loss {
namespace {

constexpr int kThreads = 128;

struct Arguments {
  const bf16 *q, *k, *index_q, *index_keys;
  const float *lse, *weights;
  const int32_t *begin, *end;
  const int32_t *scored_begin, *scored_end;
  float *masses, *teacher, *scores;
  bf16* dq;
  float *dweights, *dkeys;
  int64_t first, last, keys, scored, heads, groups, dims, index_heads, index_dims;
  float scale;
};

Arguments arguments_of(const QueryBlock& b) {
  const DenseIndexLoss& l = *b.loss;
  return {l.q.data<bf16>(), l.k.data<bf16>(), l.index_q.data<bf16>(), l.index_keys.data<bf16>(), l.lse.f32(), optional_f32(l.index_weights), l.begin.i32(), l.end.i32(),
          l.scored_begin().i32(), l.scored_end().i32(), b.masses, b.teacher, b.scores, l.dindex_q.data<bf16>(), optional_f32(l.dindex_weights), l.dindex_keys.f32(), b.first, b.last,
          l.k.size(0), l.index_keys.size(0), l.q.size(1), l.k.size(1), l.q.size(2), l.index_q.size(1), l.index_q.size(2), l.scale};
}

__device__ __forceinline__ float dot(const bf16* x, const bf16* y, int64_t dims) {
  float sum = 0;
  for (int64_t d = 0; d < dims; ++d) sum = fmaf(to_f32(x[d]), to_f32(y[d]), sum);
  return sum;
}

__device__ __forceinline__ float weight_of(const Arguments& a, int64_t row) { return a.weights ? a.weights[row] : 1; }

__global__ void __launch_bounds__(kThreads) masses_plain_kernel(const Arguments a) {
  const int64_t t = a.first + blockIdx.y, s = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (s < a.begin[t] || s >= a.end[t]) return;
  float mass = 0;
  for (int64_t h = 0; h < a.heads; ++h)
    mass += expf(a.scale * dot(a.q + (t * a.heads + h) * a.dims, a.k + (s * a.groups + h / (a.heads / a.groups)) * a.dims, a.dims) - a.lse[t * a.heads + h]);
  a.masses[blockIdx.y * a.keys + s] = mass;
}

__global__ void __launch_bounds__(kThreads) scores_plain_kernel(const Arguments a) {
  const int64_t t = a.first + blockIdx.y, s = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (s < a.scored_begin[t] || s >= a.scored_end[t]) return;
  float score = 0;
  for (int64_t row = t * a.index_heads; row < (t + 1) * a.index_heads; ++row)
    score += weight_of(a, row) * fmaxf(dot(a.index_q + row * a.index_dims, a.index_keys + s * a.index_dims, a.index_dims), 0.f);
  a.scores[blockIdx.y * a.scored + s] = score;
}

// A block per query and index head.
__global__ void __launch_bounds__(kThreads) query_gradient_plain_kernel(const Arguments a) {
  extern __shared__ float sums[];  // [index_dims]
  __shared__ float c[kThreads];
  const int64_t t = a.first + blockIdx.x, row = t * a.index_heads + blockIdx.y;
  const float* gradient = a.teacher + blockIdx.x * a.scored;
  for (int64_t d = threadIdx.x; d < a.index_dims; d += kThreads) sums[d] = 0;
  float dweight = 0;
  for (int64_t first = a.scored_begin[t]; first < a.scored_end[t]; first += kThreads) {
    const int64_t s = first + threadIdx.x, count = min(int64_t{kThreads}, a.scored_end[t] - first);
    if (s < a.scored_end[t]) {
      const float product = dot(a.index_q + row * a.index_dims, a.index_keys + s * a.index_dims, a.index_dims);
      dweight += gradient[s] * fmaxf(product, 0.f);
      c[threadIdx.x] = product > 0 ? gradient[s] * weight_of(a, row) : 0;
    }
    __syncthreads();
    for (int64_t d = threadIdx.x; d < a.index_dims; d += kThreads)
      for (int64_t j = 0; j < count; ++j) sums[d] = fmaf(c[j], to_f32(a.index_keys[(first + j) * a.index_dims + d]), sums[d]);
    __syncthreads();
  }
  dweight = block_sum<kThreads>(dweight);
  if (threadIdx.x == 0 && a.dweights) a.dweights[row] = dweight;
  for (int64_t d = threadIdx.x; d < a.index_dims; d += kThreads) a.dq[row * a.index_dims + d] = from_f32<bf16>(sums[d]);
}

// A block per key; its stream is every index head of every query of the block.
__global__ void __launch_bounds__(kThreads) key_gradient_plain_kernel(const Arguments a) {
  extern __shared__ float sums[];
  __shared__ float c[kThreads];
  const int64_t s = blockIdx.x, rows = (a.last - a.first) * a.index_heads;
  for (int64_t d = threadIdx.x; d < a.index_dims; d += kThreads) sums[d] = 0;
  for (int64_t first = 0; first < rows; first += kThreads) {
    const int64_t i = first + threadIdx.x, t = a.first + i / a.index_heads, row = a.first * a.index_heads + i, count = min(int64_t{kThreads}, rows - first);
    c[threadIdx.x] = 0;
    if (i < rows && s >= a.scored_begin[t] && s < a.scored_end[t] && dot(a.index_q + row * a.index_dims, a.index_keys + s * a.index_dims, a.index_dims) > 0)
      c[threadIdx.x] = a.teacher[(t - a.first) * a.scored + s] * weight_of(a, row);
    __syncthreads();
    for (int64_t d = threadIdx.x; d < a.index_dims; d += kThreads)
      for (int64_t j = 0; j < count; ++j)
        if (c[j] != 0) sums[d] = fmaf(c[j], to_f32(a.index_q[(a.first * a.index_heads + first + j) * a.index_dims + d]), sums[d]);
    __syncthreads();
  }
  for (int64_t d = threadIdx.x; d < a.index_dims; d += kThreads) a.dkeys[s * a.index_dims + d] += sums[d];
}

}  // namespace

void head_sums_plain(const QueryBlock& b) {
  const Arguments a = arguments_of(b);
  const auto grid = [&](int64_t columns) { return dim3(static_cast<unsigned>((columns + kThreads - 1) / kThreads), static_cast<unsigned>(a.last - a.first)); };
  if (a.keys > 0) masses_plain_kernel<<<grid(a.keys), kThreads, 0, stream_of(b.loss->stream)>>>(a);
  if (a.scored > 0) scores_plain_kernel<<<grid(a.scored), kThreads, 0, stream_of(b.loss->stream)>>>(a);
  check_launch("dense_index_loss plain");
}

void gradients_plain(const QueryBlock& b) {
  const Arguments a = arguments_of(b);
  const size_t shared = static_cast<size_t>(a.index_dims) * sizeof(float);
  HYSCALE_CHECK(shared <= 40u << 10, "the dense index loss of ", a.index_dims, " dimensions on CUDA: the plain form holds up to 10240");
  if (a.index_heads > 0)
    query_gradient_plain_kernel<<<dim3(static_cast<unsigned>(a.last - a.first), static_cast<unsigned>(a.index_heads)), kThreads, shared, stream_of(b.loss->stream)>>>(a);
  if (a.scored > 0) key_gradient_plain_kernel<<<static_cast<unsigned>(a.scored), kThreads, shared, stream_of(b.loss->stream)>>>(a);
  check_launch("dense_index_loss plain");
}

}  // namespace hyscale::dense_loss
