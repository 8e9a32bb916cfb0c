// Sparse attention on CUDA for any shape, and the choice between the forms. Plain loops over f32 products: right first.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/common/op.h"
#include "kernels/common/row_sums.cuh"
#include "kernels/sparse_attention/sparse_attention_cuda.h"

namespace hyscale {
namespace {

using bf16 = __nv_bfloat16;
constexpr int kThreads = 256, kWarps = kThreads / 32, kKeyTile = 32;

struct Shape3 {
  int64_t queries, kv_stride, dkv_stride;
  int heads, dk, dv, k;
  float scale;
};

__device__ float warp_sum(float x) {
  for (int offset = 16; offset; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}
__device__ float dot(const bf16* a, const bf16* b, int n) {
  float sum = 0;
  for (int d = static_cast<int>(threadIdx.x % 32); d < n; d += 32) sum += __bfloat162float(a[d]) * __bfloat162float(b[d]);
  return warp_sum(sum);
}

// One block per (head, query): logits [k] in shared memory.
__global__ void forward(const bf16* q, const bf16* kv, const int32_t* indices, const int32_t* counts, const float* sink, bf16* out, float* lse, Shape3 s) {
  extern __shared__ float weights[];
  __shared__ float total;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t t = blockIdx.x / s.heads, row = blockIdx.x;
  const int count = counts[t];
  indices += t * s.k;
  for (int j = warp; j < count; j += kWarps) {
    const float logit = s.scale * dot(q + row * s.dk, kv + indices[j] * s.kv_stride, s.dk);
    if (lane == 0) weights[j] = logit;
  }
  __syncthreads();
  if (warp == 0) {
    const float sink_logit = sink ? sink[row % s.heads] : -INFINITY;
    float most = sink_logit, sum = 0;
    for (int j = lane; j < count; j += 32) most = fmaxf(most, weights[j]);
    for (int offset = 16; offset; offset /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
    for (int j = lane; j < count; j += 32) sum += weights[j] = expf(weights[j] - most);
    sum = warp_sum(sum) + (sink ? expf(sink_logit - most) : 0.f);
    if (lane == 0) {
      total = sum;
      lse[row] = count ? most + logf(sum) : sink_logit;
    }
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < s.dv; d += kThreads) {
    float sum = 0;
    for (int j = 0; j < count; ++j) sum += weights[j] * __bfloat162float(kv[indices[j] * s.kv_stride + d]);
    out[row * s.dv + d] = __float2bfloat16(count ? sum / total : 0.f);
  }
}

// One block per (head, query): dlogits [k] in shared memory.
__global__ void backward_queries(const bf16* q, const bf16* kv, const int32_t* indices, const int32_t* counts, const bf16* out,
                                 const float* lse, const bf16* dout, bf16* dq, Shape3 s) {
  extern __shared__ float dlogits[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t t = blockIdx.x / s.heads, row = blockIdx.x;
  const int count = counts[t];
  indices += t * s.k;
  const float delta = dot(dout + row * s.dv, out + row * s.dv, s.dv);
  for (int j = warp; j < count; j += kWarps) {
    const bf16* key = kv + indices[j] * s.kv_stride;
    const float p = expf(s.scale * dot(q + row * s.dk, key, s.dk) - lse[row]);
    const float dp = dot(dout + row * s.dv, key, s.dv);
    if (lane == 0) dlogits[j] = s.scale * p * (dp - delta);
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < s.dk; d += kThreads) {
    float sum = 0;
    for (int j = 0; j < count; ++j) sum += dlogits[j] * __bfloat162float(kv[indices[j] * s.kv_stride + d]);
    dq[row * s.dk + d] = __float2bfloat16(sum);
  }
}

// One block per (tile of keys, query): P and dlogits [heads, tile] in shared memory, summed over heads before they leave the chip.
template <bool kFixed>
__global__ void backward_rows(const bf16* q, const bf16* kv, const int32_t* indices, const int32_t* counts, const bf16* out,
                              const float* lse, const bf16* dout, float* dkv, float* head_sum, FixedRowSums fixed, Shape3 s) {
  extern __shared__ float p[];
  float* dlogits = p + s.heads * kKeyTile;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tiles = (s.k + kKeyTile - 1) / kKeyTile;
  const int64_t t = blockIdx.x / tiles;
  const int first = static_cast<int>(blockIdx.x % tiles) * kKeyTile, count = counts[t];
  const int here = max(0, min(kKeyTile, count - first));
  indices += t * s.k + first;
  for (int h = warp; h < s.heads; h += kWarps) {
    const int64_t row = t * s.heads + h;
    const float delta = dot(dout + row * s.dv, out + row * s.dv, s.dv);
    for (int j = 0; j < here; ++j) {
      const bf16* key = kv + indices[j] * s.kv_stride;
      const float weight = expf(s.scale * dot(q + row * s.dk, key, s.dk) - lse[row]);
      const float dp = dot(dout + row * s.dv, key, s.dv);
      if (lane == 0) {
        p[h * kKeyTile + j] = weight;
        dlogits[h * kKeyTile + j] = s.scale * weight * (dp - delta);
      }
    }
  }
  __syncthreads();
  const int j = static_cast<int>(threadIdx.x);
  if (head_sum && j < min(kKeyTile, s.k - first)) {
    float sum = 0;
    for (int h = 0; j < here && h < s.heads; ++h) sum += p[h * kKeyTile + j];
    head_sum[t * s.k + first + j] = sum;
  }
  for (int i = static_cast<int>(threadIdx.x); i < here * s.dk; i += kThreads) {
    const int key = i / s.dk, d = i % s.dk;
    float sum = 0;
    for (int h = 0; h < s.heads; ++h) {
      sum += dlogits[h * kKeyTile + key] * __bfloat162float(q[(t * s.heads + h) * s.dk + d]);
      if (d < s.dv) sum += p[h * kKeyTile + key] * __bfloat162float(dout[(t * s.heads + h) * s.dv + d]);
    }
    if constexpr (kFixed) add_fixed(fixed.sums + static_cast<int64_t>(indices[key]) * s.dk + d, sum, *fixed.scale);
    else atomicAdd(dkv + indices[key] * s.dkv_stride + d, sum);
  }
}

// One block per (head, run of queries): that part of dsink[head], which one thread per head adds up afterwards.
constexpr int kSinkRuns = 64;
__global__ void sink_gradient(const bf16* out, const bf16* dout, const float* lse, const float* sink, float* parts, Shape3 s) {
  __shared__ float sums[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, head = static_cast<int>(blockIdx.x);
  const int64_t run = (s.queries + kSinkRuns - 1) / kSinkRuns, first = blockIdx.y * run, last = min(first + run, s.queries);
  float sum = 0;
  for (int64_t t = first + warp; t < last; t += kWarps) {
    const int64_t row = t * s.heads + head;
    sum -= dot(dout + row * s.dv, out + row * s.dv, s.dv) * expf(sink[head] - lse[row]);
  }
  if (threadIdx.x % 32 == 0) sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) sum += sums[w];
  parts[blockIdx.y * s.heads + head] = sum;
}
__global__ void add_sink_parts(const float* parts, float* dsink, int heads) {
  const int head = static_cast<int>(threadIdx.x);
  if (head >= heads) return;
  float sum = 0;
  for (int r = 0; r < kSinkRuns; ++r) sum += parts[r * heads + head];
  dsink[head] += sum;
}

// maxima: {max |q|, max norm of q rows, the same of dout, the same of kv}. |out| is at most the largest |v|, so
// |dlogit| <= 2 scale P |dout| |v|, and a row gets at most heads * (2 scale |dout| |v| max |q| + max |dout|) from a query.
__global__ void choose_unit(const float* maxima, float scale, int heads, int64_t queries, FixedUnit* unit) {
  *unit = fixed_unit(static_cast<float>(heads) * 1.01f * (2 * scale * maxima[3] * maxima[5] * maxima[0] + maxima[2]), queries);
}

// f32 [k], in whole pieces of 16 bytes: the compiler reads such pieces ahead of the loop's bound.
size_t shared_of_keys(int k) { return (static_cast<size_t>(k) * 4 + 15) / 16 * 16; }

template <typename Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  HYSCALE_CHECK(status == cudaSuccess, bytes, " bytes of shared memory: ", cudaGetErrorString(status));
}

void check_types(const Tensor& q, const Tensor& kv, const Tensor& out) {
  HYSCALE_CHECK(q.dtype() == DType::bf16 && kv.dtype() == DType::bf16 && out.dtype() == DType::bf16 && (kv.size(0) == 0 || kv.stride(1) == 1),
                "sparse attention on CUDA takes bf16 with dense rows: q ", to_string(q), ", kv ", to_string(kv), ", out ", to_string(out));
  HYSCALE_CHECK(q.size(1) >= 1 && q.size(1) <= 128, q.size(1), " heads; 1 to 128 are supported on CUDA");
}

Shape3 shape_of(const Tensor& q, const Tensor& kv, const Tensor& out, const Selection& selection, float scale) {
  return {q.size(0), kv.stride(0), 0, static_cast<int>(q.size(1)), static_cast<int>(q.size(2)), static_cast<int>(out.size(2)),
          static_cast<int>(selection.indices.size(1)), scale};
}

}  // namespace

void check_attention_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  HYSCALE_CHECK(status == cudaSuccess, kernel, ": ", cudaGetErrorString(status));
}

void sparse_attention_forward_plain(const SparseAttentionForward& a) {
  const Shape3 s = shape_of(a.q, a.kv, a.out, a.selection, a.scale);
  const size_t shared = shared_of_keys(s.k);
  allow_shared(forward, shared);
  forward<<<static_cast<unsigned>(s.queries * s.heads), kThreads, shared, static_cast<cudaStream_t>(a.stream.handle)>>>(
      a.q.data<bf16>(), a.kv.data<bf16>(), a.selection.indices.i32(), a.selection.counts.i32(), a.sink.defined() ? a.sink.f32() : nullptr, a.out.data<bf16>(), a.lse.f32(), s);
  check_attention_launch("sparse_attention_forward_plain");
}

void sparse_attention_backward_plain(const SparseAttentionBackward& a, FixedRowSums fixed) {
  Shape3 s = shape_of(a.q, a.kv, a.out, a.selection, a.scale);
  s.dkv_stride = a.dkv.stride(0);
  const auto stream = static_cast<cudaStream_t>(a.stream.handle);
  const size_t shared = shared_of_keys(s.k), tile_shared = static_cast<size_t>(s.heads) * kKeyTile * 8;
  allow_shared(backward_queries, shared);
  backward_queries<<<static_cast<unsigned>(s.queries * s.heads), kThreads, shared, stream>>>(
      a.q.data<bf16>(), a.kv.data<bf16>(), a.selection.indices.i32(), a.selection.counts.i32(), a.out.data<bf16>(), a.lse.f32(),
      a.dout.data<bf16>(), a.dq.data<bf16>(), s);
  check_attention_launch("sparse_attention_backward_queries");
  const auto kernel = fixed.sums ? backward_rows<true> : backward_rows<false>;
  allow_shared(kernel, tile_shared);
  const int64_t tiles = (s.k + kKeyTile - 1) / kKeyTile;
  if (tiles == 0) return;
  kernel<<<static_cast<unsigned>(s.queries * tiles), kThreads, tile_shared, stream>>>(
      a.q.data<bf16>(), a.kv.data<bf16>(), a.selection.indices.i32(), a.selection.counts.i32(), a.out.data<bf16>(), a.lse.f32(),
      a.dout.data<bf16>(), a.dkv.f32(), a.head_sum.defined() ? a.head_sum.f32() : nullptr, fixed, s);
  check_attention_launch("sparse_attention_backward_rows");
}

size_t sparse_attention_forward_cuda_workspace_bytes(const SparseAttentionForward&) { return 0; }

void sparse_attention_forward_cuda(const SparseAttentionForward& a) {
  check_types(a.q, a.kv, a.out);
  if (a.q.size(0) == 0) return;
  if (sparse_attention_fits_hopper(a.q, a.kv, a.out)) sparse_attention_forward_hopper(a);
  else sparse_attention_forward_plain(a);
}

static bool fits_hopper(const SparseAttentionBackward& a) { return sparse_attention_fits_hopper(a.q, a.kv, a.out) && a.dkv.stride(0) % 4 == 0; }

size_t sparse_attention_backward_cuda_workspace_bytes(const SparseAttentionBackward& a) {
  const size_t sink = a.dsink.defined() ? aligned_bytes(static_cast<size_t>(kSinkRuns * a.q.size(1)) * 4) : 0;
  if (fits_hopper(a)) return sink + sparse_attention_backward_hopper_workspace_bytes(a);
  return sink + (a.deterministic ? 512 + aligned_bytes(static_cast<size_t>(a.kv.elements()) * 8) : 0);
}

void sparse_attention_backward_cuda(const SparseAttentionBackward& a) {
  check_types(a.q, a.kv, a.out);
  if (a.q.size(0) == 0) return;
  const auto stream = static_cast<cudaStream_t>(a.stream.handle);
  Workspace workspace(a.workspace);
  if (a.dsink.defined()) {
    const int heads = static_cast<int>(a.q.size(1));
    float* parts = workspace.take<float>(kSinkRuns * heads);
    sink_gradient<<<dim3(static_cast<unsigned>(heads), kSinkRuns), kThreads, 0, stream>>>(a.out.data<bf16>(), a.dout.data<bf16>(), a.lse.f32(), a.sink.f32(), parts,
                                                                                          shape_of(a.q, a.kv, a.out, a.selection, a.scale));
    add_sink_parts<<<1, 128, 0, stream>>>(parts, a.dsink.f32(), heads);
    check_attention_launch("sparse_attention sink gradient");
  }
  if (fits_hopper(a)) return sparse_attention_backward_hopper(a, workspace);
  if (!a.deterministic) return sparse_attention_backward_plain(a, {});
  constexpr int kGrid = 1024;
  const int64_t rows = a.kv.size(0), query_rows = a.q.size(0) * a.q.size(1);
  const int dk = static_cast<int>(a.q.size(2)), dv = static_cast<int>(a.out.size(2));
  float* maxima = workspace.take<float>(6);
  FixedUnit* unit = workspace.take<FixedUnit>(1);
  auto* sums = workspace.take<long long>(a.kv.elements());
  HYSCALE_CHECK(cudaMemsetAsync(maxima, 0, 6 * sizeof(float), stream) == cudaSuccess &&
                    cudaMemsetAsync(sums, 0, static_cast<size_t>(a.kv.elements()) * 8, stream) == cudaSuccess,
                "clearing the fixed-point sums");
  raise_maxima<<<kGrid, kThreads, 0, stream>>>(a.q.data<bf16>(), query_rows, dk, dk, maxima);
  raise_maxima<<<kGrid, kThreads, 0, stream>>>(a.dout.data<bf16>(), query_rows, dv, dv, maxima + 2);
  raise_maxima<<<kGrid, kThreads, 0, stream>>>(a.kv.data<bf16>(), rows, dv, a.kv.stride(0), maxima + 4);
  choose_unit<<<1, 1, 0, stream>>>(maxima, fabsf(a.scale), static_cast<int>(a.q.size(1)), a.q.size(0), unit);
  sparse_attention_backward_plain(a, {sums, &unit->scale});
  finish_fixed_sums<<<kGrid, kThreads, 0, stream>>>(a.dkv.f32(), a.dkv.stride(0), sums, rows, dk, unit);
  check_attention_launch("sparse_attention deterministic sums");
}

}  // namespace hyscale
