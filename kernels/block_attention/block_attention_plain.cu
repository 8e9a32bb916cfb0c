// Block attention on CUDA for any shape, and the choice between the forms. Plain loops over f32 products: right first.
#include "kernels/block_attention/attended_tokens.cuh"
#include "kernels/block_attention/block_attention_cuda.h"
#include "kernels/block_attention/key_readers.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/op.h"
#include "kernels/common/row_sums.cuh"

namespace hyscale {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kKeyTile = 32;

struct Dims {
  int heads, groups, dims;
  float scale;
  template <typename Op>
  explicit Dims(const Op& a) : heads(static_cast<int>(a.q.size(1))), groups(static_cast<int>(a.k.size(1))), dims(static_cast<int>(a.q.size(2))), scale(a.scale) {}
  __device__ int group_of(int head) const { return head / (heads / groups); }
  // Where the numbers of a token's key lie that `head` reads.
  __device__ int64_t key(int64_t row, int head) const { return (row * groups + group_of(head)) * dims; }
};

template <typename T>
__device__ float dot(const T* a, const T* b, int n) {
  float sum = 0;
  for (int d = static_cast<int>(threadIdx.x % 32); d < n; d += 32) sum += to_f32(a[d]) * to_f32(b[d]);
  return warp_sum(sum);
}

// One block per (query, head): logits and rows of its tokens in shared memory.
template <typename T>
__global__ void forward(const T* q, const T* k, const T* v, AttendedTokens tokens, T* out, float* lse, Dims n) {
  extern __shared__ float weights[];
  int32_t* rows = reinterpret_cast<int32_t*>(weights + tokens.most());
  __shared__ float total;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t at = blockIdx.x, t = at / n.heads;
  const int head = static_cast<int>(at % n.heads), count = tokens.count(t);
  for (int j = warp; j < count; j += kWarps) {
    const int64_t row = tokens.row(t, j, count);
    const float logit = n.scale * dot(q + at * n.dims, k + n.key(row, head), n.dims);
    if (lane == 0) weights[j] = logit, rows[j] = static_cast<int32_t>(row);
  }
  __syncthreads();
  if (warp == 0) {
    float most = -INFINITY, sum = 0;
    for (int j = lane; j < count; j += 32) most = fmaxf(most, weights[j]);
    most = warp_max(most);
    for (int j = lane; j < count; j += 32) sum += weights[j] = expf(weights[j] - most);
    sum = warp_sum(sum);
    if (lane == 0) {
      total = sum;
      lse[at] = count ? most + logf(sum) : -INFINITY;
    }
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < n.dims; d += kThreads) {
    float sum = 0;
    for (int j = 0; j < count; ++j) sum += weights[j] * to_f32(v[n.key(rows[j], head) + d]);
    out[at * n.dims + d] = from_f32<T>(count ? sum / total : 0.f);
  }
}

// One block per (query, head): dlogits and rows of its tokens in shared memory.
template <typename T>
__global__ void backward_queries(const T* q, const T* k, const T* v, AttendedTokens tokens, const T* out, const float* lse, const T* dout, T* dq, Dims n) {
  extern __shared__ float dlogits[];
  int32_t* rows = reinterpret_cast<int32_t*>(dlogits + tokens.most());
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t at = blockIdx.x, t = at / n.heads;
  const int head = static_cast<int>(at % n.heads), count = tokens.count(t);
  const float delta = dot(dout + at * n.dims, out + at * n.dims, n.dims);
  for (int j = warp; j < count; j += kWarps) {
    const int64_t row = tokens.row(t, j, count);
    const float p = expf(n.scale * dot(q + at * n.dims, k + n.key(row, head), n.dims) - lse[at]);
    const float dp = dot(dout + at * n.dims, v + n.key(row, head), n.dims);
    if (lane == 0) dlogits[j] = n.scale * p * (dp - delta), rows[j] = static_cast<int32_t>(row);
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < n.dims; d += kThreads) {
    float sum = 0;
    for (int j = 0; j < count; ++j) sum += dlogits[j] * to_f32(k[n.key(rows[j], head) + d]);
    dq[at * n.dims + d] = from_f32<T>(sum);
  }
}

__device__ __forceinline__ void add_to(float* to, long long* fixed, const float* unit, int64_t at, float x) {
  if (fixed) add_fixed(fixed + at, x, *unit);
  else atomicAdd(to + at, x);
}

// One block per (query, tile of its tokens): P and dlogits [heads, tile] in shared memory, summed over a group's heads before
// they leave the chip. Masses are not negative, so their bits order like them.
template <typename T>
__global__ void backward_keys(const T* q, const T* k, const T* v, AttendedTokens tokens, const T* out, const float* lse, const T* dout, float* dk, float* dv,
                              float* block_mass, FixedKeySums fixed, int tiles, Dims n) {
  extern __shared__ float p[];
  float* dlogits = p + n.heads * kKeyTile;
  __shared__ int64_t rows[kKeyTile];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int64_t t = blockIdx.x / tiles;
  const int first = static_cast<int>(blockIdx.x % tiles) * kKeyTile, count = tokens.count(t), here = max(0, min(kKeyTile, count - first));
  if (here == 0) return;
  if (thread < here) rows[thread] = tokens.row(t, first + thread, count);
  __syncthreads();
  for (int h = warp; h < n.heads; h += kWarps) {
    const int64_t at = t * n.heads + h;
    const float delta = dot(dout + at * n.dims, out + at * n.dims, n.dims);
    for (int j = 0; j < here; ++j) {
      const float weight = expf(n.scale * dot(q + at * n.dims, k + n.key(rows[j], h), n.dims) - lse[at]);
      const float dp = dot(dout + at * n.dims, v + n.key(rows[j], h), n.dims);
      if (lane == 0) {
        p[h * kKeyTile + j] = weight;
        dlogits[h * kKeyTile + j] = n.scale * weight * (dp - delta);
      }
    }
  }
  __syncthreads();
  if (block_mass && thread < here && first + thread < tokens.in_blocks(t)) {
    float sum = 0;
    for (int h = 0; h < n.heads; ++h) sum += p[h * kKeyTile + thread];
    atomicMax(reinterpret_cast<int*>(block_mass + t * tokens.k + (first + thread) / tokens.ratio), __float_as_int(sum));
  }
  const int per_group = n.heads / n.groups, width = n.groups * n.dims;
  for (int i = thread; i < here * width; i += kThreads) {
    const int j = i / width, g = i % width / n.dims, d = i % n.dims;
    float key_sum = 0, value_sum = 0;
    for (int h = g * per_group; h < (g + 1) * per_group; ++h) {
      const int64_t number = (t * n.heads + h) * n.dims + d;
      key_sum += dlogits[h * kKeyTile + j] * to_f32(q[number]);
      value_sum += p[h * kKeyTile + j] * to_f32(dout[number]);
    }
    const int64_t at = rows[j] * width + i % width;
    add_to(dk, fixed.dk, fixed.dk_scale, at, key_sum);
    add_to(dv, fixed.dv, fixed.dv_scale, at, value_sum);
  }
}

// maxima: {max |q|, max norm of q rows, the same of dout, the same of v}. |out| is at most the largest |v|, so |dlogit| <= 2 scale P |dout| |v|;
// a query adds to a row what a group's heads contribute, each with P <= 1.
__global__ void choose_units(const float* maxima, float scale, int per_group, int64_t queries, FixedUnit* units) {
  const float heads = 1.01f * static_cast<float>(per_group);
  units[0] = fixed_unit(heads * 2 * scale * maxima[3] * maxima[5] * maxima[0], queries);
  units[1] = fixed_unit(heads * maxima[2], queries);
}

template <typename Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  HYSCALE_CHECK(status == cudaSuccess, bytes, " bytes of shared memory: ", cudaGetErrorString(status));
}

template <typename Op>
void check_types(const Op& a) {
  HYSCALE_CHECK(a.k.dtype() == a.q.dtype() && a.v.dtype() == a.q.dtype() && a.out.dtype() == a.q.dtype(), "block attention on CUDA takes q, k, v and out of one type: q ",
                to_string(a.q), ", k ", to_string(a.k), ", v ", to_string(a.v), ", out ", to_string(a.out));
  HYSCALE_CHECK(a.q.size(1) >= 1 && a.q.size(1) <= 128, a.q.size(1), " heads; 1 to 128 are supported on CUDA");
}

}  // namespace

void block_attention_forward_plain(const BlockAttentionForward& a) {
  const Dims n(a);
  const AttendedTokens tokens(a.blocks);
  const size_t shared = static_cast<size_t>(tokens.most()) * 8;
  with_float_type(a.q.dtype(), "block_attention_forward", [&](auto type) {
    using T = decltype(type);
    allow_shared(forward<T>, shared);
    forward<T><<<static_cast<unsigned>(a.q.size(0) * n.heads), kThreads, shared, stream_of(a.stream)>>>(a.q.data<T>(), a.k.data<T>(), a.v.data<T>(), tokens, a.out.data<T>(),
                                                                                                        a.lse.f32(), n);
  });
  check_launch("block_attention_forward_plain");
}

void block_attention_backward_plain(const BlockAttentionBackward& a, FixedKeySums fixed) {
  const Dims n(a);
  const AttendedTokens tokens(a.blocks);
  const size_t shared = static_cast<size_t>(tokens.most()) * 8, tile_shared = static_cast<size_t>(n.heads) * kKeyTile * 8;
  const int tiles = (tokens.most() + kKeyTile - 1) / kKeyTile;
  if (a.block_mass.defined()) check_cuda(cudaMemsetAsync(a.block_mass.raw(), 0, a.block_mass.bytes(), stream_of(a.stream)), "clearing block_mass");
  with_float_type(a.q.dtype(), "block_attention_backward", [&](auto type) {
    using T = decltype(type);
    allow_shared(backward_queries<T>, shared);
    backward_queries<T><<<static_cast<unsigned>(a.q.size(0) * n.heads), kThreads, shared, stream_of(a.stream)>>>(
        a.q.data<T>(), a.k.data<T>(), a.v.data<T>(), tokens, a.out.data<T>(), a.lse.f32(), a.dout.data<T>(), a.dq.data<T>(), n);
    check_launch("block_attention_backward_queries");
    if (tiles == 0) return;
    allow_shared(backward_keys<T>, tile_shared);
    backward_keys<T><<<static_cast<unsigned>(a.q.size(0) * tiles), kThreads, tile_shared, stream_of(a.stream)>>>(
        a.q.data<T>(), a.k.data<T>(), a.v.data<T>(), tokens, a.out.data<T>(), a.lse.f32(), a.dout.data<T>(), a.dk.f32(), a.dv.f32(),
        a.block_mass.defined() ? a.block_mass.f32() : nullptr, fixed, tiles, n);
    check_launch("block_attention_backward_keys");
  });
}

size_t block_attention_forward_cuda_workspace_bytes(const BlockAttentionForward& a) { return block_attention_fits_united(a) ? united_blocks_bytes(a, false) : 0; }

void block_attention_forward_cuda(const BlockAttentionForward& a) {
  check_types(a);
  if (a.q.size(0) == 0) return;
  if (block_attention_fits_united(a)) return block_attention_forward_united(a);
  block_attention_fits_hopper(a) ? block_attention_forward_hopper(a) : block_attention_forward_plain(a);
}

size_t block_attention_backward_cuda_workspace_bytes(const BlockAttentionBackward& a) {
  if (!a.deterministic && !block_attention_fits_united(a)) return 0;
  if (!a.deterministic) return united_blocks_bytes(a, true) + key_readers_bytes(a) + head_sums_bytes(a);
  return 512 + 2 * aligned_bytes(static_cast<size_t>(a.k.elements()) * 8);
}

void block_attention_backward_cuda(const BlockAttentionBackward& a) {
  check_types(a);
  HYSCALE_CHECK(a.dout.dtype() == a.q.dtype() && a.dq.dtype() == a.q.dtype(), "q ", to_string(a.q), ", dout ", to_string(a.dout), ", dq ", to_string(a.dq));
  if (a.q.size(0) == 0) return;
  if (!a.deterministic && block_attention_fits_united(a)) return block_attention_backward_united(a);
  if (!a.deterministic) return block_attention_fits_hopper(a) ? block_attention_backward_hopper(a) : block_attention_backward_plain(a, {});
  constexpr int kGrid = 1024;
  const cudaStream_t stream = stream_of(a.stream);
  const int64_t query_rows = a.q.size(0) * a.q.size(1), key_rows = a.k.size(0) * a.k.size(1);
  const int dims = static_cast<int>(a.q.size(2));
  Workspace workspace(a.workspace);
  float* maxima = workspace.take<float>(6);
  FixedUnit* units = workspace.take<FixedUnit>(2);
  FixedKeySums fixed{workspace.take<long long>(a.k.elements()), workspace.take<long long>(a.k.elements()), &units[0].scale, &units[1].scale};
  check_cuda(cudaMemsetAsync(maxima, 0, 6 * sizeof(float), stream), "clearing maxima");
  for (long long* sums : {fixed.dk, fixed.dv}) check_cuda(cudaMemsetAsync(sums, 0, static_cast<size_t>(a.k.elements()) * 8, stream), "clearing the fixed-point sums");
  with_float_type(a.q.dtype(), "block_attention_backward", [&](auto type) {
    using T = decltype(type);
    raise_maxima<<<kGrid, kThreads, 0, stream>>>(a.q.data<T>(), query_rows, dims, dims, maxima);
    raise_maxima<<<kGrid, kThreads, 0, stream>>>(a.dout.data<T>(), query_rows, dims, dims, maxima + 2);
    raise_maxima<<<kGrid, kThreads, 0, stream>>>(a.v.data<T>(), key_rows, dims, dims, maxima + 4);
  });
  choose_units<<<1, 1, 0, stream>>>(maxima, fabsf(a.scale), static_cast<int>(a.q.size(1) / a.k.size(1)), a.q.size(0), units);
  block_attention_backward_plain(a, fixed);
  finish_fixed_sums<<<kGrid, kThreads, 0, stream>>>(a.dk.f32(), dims, fixed.dk, key_rows, dims, units);
  finish_fixed_sums<<<kGrid, kThreads, 0, stream>>>(a.dv.f32(), dims, fixed.dv, key_rows, dims, units + 1);
  check_launch("block_attention deterministic sums");
}

}  // namespace hyscale
