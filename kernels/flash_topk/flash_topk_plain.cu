// FlashTopK on CUDA for shapes without a tensor-core form: a block per query, a thread per key of a tile. Same lists, same
// selection, same rule; sums run over dimensions, then heads, in order. Meant for small models and tests.
#include "kernels/common/e4m3.cuh"
#include "kernels/flash_topk/flash_topk_cuda.h"
#include "kernels/flash_topk/select.cuh"

namespace hyscale {
namespace {

using topk::Candidate;
constexpr int kThreads = 256;

template <typename T>
struct Plain {
  const T *q, *keys;
  const float *weights, *q_scales, *key_scales;  // or null
  const int32_t *begin, *end;
  int64_t queries, num_keys, first_key, key_step;
  int heads, dims, k, capacity;
  float* state_scores;
  int32_t *state_indices, *state_counts, *nan_query;
  Candidate* lists;
};

template <typename T>
__device__ float score_key(const Plain<T>& p, const float* q, const float* weights, const T* key) {
  float score = 0;
  for (int h = 0; h < p.heads; ++h) {
    float dot = 0;
    for (int d = 0; d < p.dims; ++d) dot = fmaf(q[h * p.dims + d], to_f32(key[d]), dot);
    score = fmaf(weights ? weights[h] : 1, dot < 0 ? 0 : dot, score);  // keeps NaN
  }
  return score + 0.0f;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) plain_kernel(const Plain<T> p) {
  extern __shared__ float shared[];
  __shared__ topk::Scratch scratch;
  __shared__ int count;
  __shared__ uint64_t worst;  // what a candidate must beat
  float *q = shared, *weights = p.weights || p.q_scales ? shared + p.heads * p.dims : nullptr;
  Candidate* list = p.lists + static_cast<int64_t>(blockIdx.x) * p.capacity;
  const int lane = threadIdx.x % 32;
  for (int64_t t = blockIdx.x; t < p.queries; t += gridDim.x) {
    __syncthreads();
    for (int i = threadIdx.x; i < p.heads * p.dims; i += kThreads) q[i] = to_f32(p.q[t * p.heads * p.dims + i]);
    if (weights)
      for (int h = threadIdx.x; h < p.heads; h += kThreads) weights[h] = (p.weights ? p.weights[t * p.heads + h] : 1) * (p.q_scales ? p.q_scales[t * p.heads + h] : 1);
    for (int i = threadIdx.x; i < p.state_counts[t]; i += kThreads) topk::store_candidate(list + i, {p.state_scores[t * p.k + i], p.state_indices[t * p.k + i]});
    if (threadIdx.x == 0) count = p.state_counts[t], worst = topk::kNoThreshold;
    __syncthreads();
    const int64_t first = max(p.begin[t] - p.first_key, int64_t{0}), last = min(p.end[t] - p.first_key, p.num_keys);
    for (int64_t tile = first; tile < last || tile == first; tile += kThreads) {
      const int64_t s = tile + threadIdx.x;
      if (s < last) {
        const float score = score_key(p, q, weights, p.keys + s * p.key_step) * (p.key_scales ? p.key_scales[s] : 1);
        const Candidate c{score, static_cast<int32_t>(p.first_key + s)};
        if (score != score)
          atomicMin(p.nan_query, static_cast<int32_t>(t));
        else if (score > topk::threshold_score(worst) || (score == topk::threshold_score(worst) && c.index < topk::threshold_index(worst)))
          topk::store_candidate(list + atomicAdd(&count, 1), c);
      }
      __threadfence_block();
      __syncthreads();
      const bool full = count + kThreads > p.capacity || (tile + kThreads >= last && count > p.k);
      __syncthreads();
      if (full && threadIdx.x < 32) {
        uint64_t threshold = worst;
        topk::keep_best({list, count, list, 0, 0, 0}, p.k, true, threshold, scratch, lane, [&](uint64_t raised) { threshold = raised; });
        if (lane == 0) count = p.k, worst = threshold;
      }
      __syncthreads();
    }
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const Candidate c = topk::load_candidate(list + i);
      p.state_scores[t * p.k + i] = c.score;
      p.state_indices[t * p.k + i] = c.index;
    }
    if (threadIdx.x == 0) p.state_counts[t] = count;
  }
}

template <typename T>
void launch(FlashTopKState& s, const FlashTopKUpdate& u, void* lists) {
  Plain<T> p{};
  p.q = u.q.data<T>();
  p.keys = u.keys.data<T>();
  p.weights = u.weights.defined() ? u.weights.f32() : nullptr;
  p.q_scales = u.q_scales.defined() ? u.q_scales.f32() : nullptr;
  p.key_scales = u.key_scales.defined() ? u.key_scales.f32() : nullptr;
  p.begin = u.begin.i32();
  p.end = u.end.i32();
  p.queries = u.q.size(0);
  p.num_keys = u.keys.size(0);
  p.first_key = u.first_key;
  p.key_step = u.keys.stride(0);
  p.heads = static_cast<int>(u.q.size(1));
  p.dims = static_cast<int>(u.q.size(2));
  p.k = static_cast<int>(s.k);
  p.capacity = static_cast<int>(topk::list_entries(s.k));
  p.state_scores = s.scores.f32();
  p.state_indices = s.indices.i32();
  p.state_counts = s.counts.i32();
  p.nan_query = s.nan_query.i32();
  p.lists = static_cast<Candidate*>(lists);
  const size_t shared = static_cast<size_t>(p.heads * (p.dims + 1)) * sizeof(float);
  HYSCALE_CHECK(shared <= (48u << 10) - 4096, "flash_topk of ", p.heads, " heads of ", p.dims, " on CUDA: the plain form holds a query of up to 44 KiB");
  plain_kernel<T><<<static_cast<unsigned>(std::min<int64_t>(p.queries, topk::kPlainBlocks)), kThreads, shared, stream_of(u.stream)>>>(p);
  check_launch("flash_topk plain");
}

}  // namespace

void flash_topk_update_plain_cuda(FlashTopKState& s, const FlashTopKUpdate& u, void* lists) {
  u.q.dtype() == DType::f8e4m3 ? launch<e4m3>(s, u, lists) : launch<bf16>(s, u, lists);
}

}  // namespace hyscale
