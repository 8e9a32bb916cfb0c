// Index loss on CUDA, and its plain form for any shape: one block per query, f32 products of bf16 or f32 inputs. Scores of the selected keys stay in shared memory;
// keys are read twice (scores, then gradients in tiles). dq and dweights are summed by one thread each in key order, so only
// dkeys and the loss cross blocks: the loss in query order, dkeys by atomics or, where deterministic, in fixed point.
#include "kernels/common/cuda.cuh"
#include "kernels/index_loss/divergence.cuh"
#include "kernels/index_loss/index_loss_cuda.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kKeyTile = 32, kGrid = 1024;

struct Blocks {  // of shared memory
  float *q, *dq, *scores, *relu, *coefficient, *key;
  template <typename T>
  __device__ Blocks(float* at, const IndexLossArgumentsOf<T>& a)
      : q(at), dq(q + a.heads * a.dims), scores(dq + a.heads * a.dims), relu(scores + a.k), coefficient(relu + a.heads * kKeyTile),
        key(coefficient + a.heads * kKeyTile) {}
};
size_t shared_bytes(int64_t heads, int64_t dims, int64_t k) {
  return static_cast<size_t>(2 * heads * dims + k + 2 * heads * kKeyTile + kKeyTile * dims) * sizeof(float);
}

template <typename T>
__device__ float dot(const float* q, const T* key, int dims) {
  float sum = 0;
  for (int d = static_cast<int>(threadIdx.x % 32); d < dims; d += 32) sum += q[d] * to_f32(key[d]);
  return warp_sum(sum);
}

// Gradients through the keys [first, first + here): coefficient[h, j] = G[j] w[h] [dot > 0].
template <typename T>
__device__ __forceinline__ void add_tile(const IndexLossArgumentsOf<T>& a, const Blocks& b, const int32_t* ids, int first, int here, int64_t t, float& dweight) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int j = warp; j < here; j += kWarps) {
    const T* key = a.keys + ids[first + j] * a.keys_stride;
    for (int d = lane; d < a.dims; d += 32) b.key[j * a.dims + d] = to_f32(key[d]);
    for (int h = 0; h < a.heads; ++h) {
      const float product = dot(b.q + h * a.dims, key, a.dims), weight = a.weights ? a.weights[t * a.heads + h] : 1;
      if (lane == 0) {
        b.relu[h * kKeyTile + j] = fmaxf(product, 0.f);
        b.coefficient[h * kKeyTile + j] = product > 0 ? b.scores[first + j] * weight : 0.f;
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < a.heads * a.dims; i += kThreads) {
    float sum = b.dq[i];
    for (int j = 0; j < here; ++j) sum += b.coefficient[i / a.dims * kKeyTile + j] * b.key[j * a.dims + i % a.dims];
    b.dq[i] = sum;
  }
  if (static_cast<int>(threadIdx.x) < a.heads)
    for (int j = 0; j < here; ++j) dweight += b.scores[first + j] * b.relu[static_cast<int>(threadIdx.x) * kKeyTile + j];
  for (int i = static_cast<int>(threadIdx.x); i < here * a.dims; i += kThreads) {
    const int j = i / a.dims, d = i % a.dims;
    float sum = 0;
    for (int h = 0; h < a.heads; ++h) sum += b.coefficient[h * kKeyTile + j] * b.q[h * a.dims + d];
    if (a.sums) add_fixed(a.sums + static_cast<int64_t>(ids[first + j]) * a.dims + d, sum, a.unit->scale);
    else atomicAdd(a.dkeys + ids[first + j] * a.dkeys_stride + d, sum);
  }
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) one_query(const IndexLossArgumentsOf<T> a) {
  extern __shared__ float shared[];
  const Blocks b(shared, a);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t t = blockIdx.x;
  const int count = a.counts[t], numbers = a.heads * a.dims;
  const int32_t* ids = a.indices + t * a.k;
  for (int i = static_cast<int>(threadIdx.x); i < numbers; i += kThreads) {
    b.q[i] = to_f32(a.q[t * numbers + i]);
    b.dq[i] = 0;
  }
  __syncthreads();
  for (int j = warp; j < count; j += kWarps) {
    float score = 0;
    for (int h = 0; h < a.heads; ++h)
      score += (a.weights ? a.weights[t * a.heads + h] : 1) * fmaxf(dot(b.q + h * a.dims, a.keys + ids[j] * a.keys_stride, a.dims), 0.f);
    if (lane == 0) b.scores[j] = score;
  }
  __syncthreads();
  if (warp == 0) {
    const double loss = count ? divergence(b.scores, a.head_sum + t * a.k, count, a.grad_scale, lane, 32, warp_sum<float>, warp_max) : 0;
    if (lane == 0) a.losses[t] = loss;
  }
  __syncthreads();
  float dweight = 0;
  for (int first = 0; first < count; first += kKeyTile) add_tile(a, b, ids, first, min(kKeyTile, count - first), t, dweight);
  for (int i = static_cast<int>(threadIdx.x); i < numbers; i += kThreads) a.dq[t * numbers + i] = from_f32<T>(b.dq[i]);
  if (a.dweights && static_cast<int>(threadIdx.x) < a.heads) a.dweights[t * a.heads + threadIdx.x] = dweight;
}

// loss_sum += losses in a fixed tree: each thread a contiguous share, then threads in order.
__global__ void add_losses(const double* losses, int64_t queries, double* loss_sum) {
  __shared__ double parts[kThreads];
  const int64_t share = (queries + kThreads - 1) / kThreads;
  double sum = 0;
  for (int64_t t = threadIdx.x * share; t < min(queries, (threadIdx.x + 1) * share); ++t) sum += losses[t];
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads; ++i) sum += parts[i];
  *loss_sum += sum;
}

// |r - p| <= 1, so a row of dkeys gets at most |grad_scale| heads max |w| max |q| from a query.
__global__ void choose_unit(const float* maxima, float grad_scale, int heads, bool weighted, int64_t queries, FixedUnit* unit) {
  *unit = fixed_unit(1.01f * grad_scale * static_cast<float>(heads) * (weighted ? maxima[2] : 1) * maxima[0], queries);
}

}  // namespace

size_t index_loss_cuda_workspace_bytes(const IndexLoss& l) {
  size_t bytes = aligned_bytes(static_cast<size_t>(l.q.size(0)) * sizeof(double));
  if (l.deterministic) bytes += 512 + aligned_bytes(static_cast<size_t>(l.keys.elements()) * 8);
  if (index_loss_fits_hopper(l) && l.deterministic) bytes += index_loss_two_halves_workspace_bytes(l);
  return bytes;
}

template <typename T>
static void index_loss_of(const IndexLoss& l) {
  const int64_t queries = l.q.size(0), heads = l.q.size(1), dims = l.q.size(2), k = l.selection.indices.size(1), rows = l.keys.size(0);
  if (queries == 0) return;
  const auto stream = static_cast<cudaStream_t>(l.stream.handle);
  const bool weighted = l.weights.defined();
  Workspace workspace(l.workspace);
  IndexLossArgumentsOf<T> a{l.q.data<T>(), l.keys.data<T>(), weighted ? l.weights.f32() : nullptr, l.head_sum.f32(), l.selection.indices.i32(),
              l.selection.counts.i32(), l.dq.data<T>(), weighted ? l.dweights.f32() : nullptr, l.dkeys.f32(), workspace.take<double>(queries),
              nullptr, nullptr, l.keys.stride(0), l.dkeys.stride(0), static_cast<int>(heads), static_cast<int>(dims), static_cast<int>(k), l.grad_scale};
  if (l.deterministic) {
    float* maxima = workspace.take<float>(4);
    FixedUnit* unit = workspace.take<FixedUnit>(1);
    a.sums = workspace.take<long long>(l.keys.elements());
    a.unit = unit;
    HYSCALE_CHECK(cudaMemsetAsync(maxima, 0, 4 * sizeof(float), stream) == cudaSuccess &&
                      cudaMemsetAsync(a.sums, 0, static_cast<size_t>(l.keys.elements()) * 8, stream) == cudaSuccess,
                  "clearing the fixed-point sums");
    raise_maxima<<<kGrid, kThreads, 0, stream>>>(a.q, queries * heads, a.dims, dims, maxima);
    if (weighted) raise_maxima<<<kGrid, kThreads, 0, stream>>>(a.weights, queries, a.heads, heads, maxima + 2);
    choose_unit<<<1, 1, 0, stream>>>(maxima, fabsf(l.grad_scale), a.heads, weighted, queries, unit);
  }
  bool done = false;
  if constexpr (std::is_same_v<T, bf16>) {
    if (index_loss_fits_hopper(l) && l.deterministic) index_loss_two_halves(a, queries, rows, workspace, stream), done = true;
    else if (index_loss_fits_hopper(l)) index_loss_hopper(a, queries, stream), done = true;
    else if (index_loss_fits_few_heads(l)) index_loss_few_heads(a, queries, stream), done = true;
  }
  if (!done) {
    const size_t shared = shared_bytes(heads, dims, k);
    const cudaError_t status = cudaFuncSetAttribute(one_query<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    HYSCALE_CHECK(status == cudaSuccess, "index loss needs ", shared, " bytes of shared memory: ", cudaGetErrorString(status));
    one_query<T><<<static_cast<unsigned>(queries), kThreads, shared, stream>>>(a);
  }
  if (l.deterministic) finish_fixed_sums<<<kGrid, kThreads, 0, stream>>>(a.dkeys, a.dkeys_stride, a.sums, rows, a.dims, a.unit);
  add_losses<<<1, kThreads, 0, stream>>>(a.losses, queries, l.loss_sum.data<double>());
  const cudaError_t status = cudaGetLastError();
  HYSCALE_CHECK(status == cudaSuccess, "index_loss: ", cudaGetErrorString(status));
}

void index_loss_cuda(const IndexLoss& l) {
  const DType dtype = l.q.dtype();
  HYSCALE_CHECK((dtype == DType::bf16 || dtype == DType::f32) && l.keys.dtype() == dtype && l.dq.dtype() == dtype && l.q.size(1) <= kThreads,
                "index loss on CUDA takes q, keys and dq in bf16 or all in f32, and at most ", kThreads, " heads: q ", to_string(l.q), ", keys ",
                to_string(l.keys), ", dq ", to_string(l.dq));
  with_float_type(dtype, "index_loss", [&](auto t) { index_loss_of<decltype(t)>(l); });
}

}  // namespace hyscale
