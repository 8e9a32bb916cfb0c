// One warp per token; scores of a token lie in shared memory.
#include "kernels/common/cuda.cuh"
#include "kernels/common/op.h"
#include "kernels/router/score.h"

namespace hyscale {
namespace {

constexpr int kWarps = 4;
constexpr double kMassUnit = 1099511627776.0;  // 2^40: masses are summed as integers, so their order does not matter
// What is taken from a token's logits before they are scored: for softmax the largest, so that no score overflows. Every lane gets it.
__device__ float logit_shift(RouterScore score, const float* logits, int num_experts, int lane) {
  if (score != RouterScore::softmax) return 0;
  float most = -INFINITY;
  for (int e = lane; e < num_experts; e += 32) most = fmaxf(most, logits[e]);
  return warp_max(most);
}

// Best of `count` values by (value, lower index); every lane gets it.
__device__ int warp_best(const float* values, int count, int lane) {
  float best = -INFINITY;
  int at = count;
  for (int e = lane; e < count; e += 32)
    if (values[e] > best || (at == count && !isnan(values[e]))) best = values[e], at = e;
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, best, step);
    const int other_at = __shfl_xor_sync(0xffffffffu, at, step);
    if (other_at < count && (at == count || other > best || (other == best && other_at < at))) best = other, at = other_at;
  }
  return at;
}

// Experts of groups that lose become ineligible. group_scores: scratch of num_groups floats.
__device__ void drop_groups(float* biased, float* group_scores, const RouterRule& rule, int num_experts, int lane) {
  const int groups = static_cast<int>(rule.num_groups), size = num_experts / groups;
  for (int g = lane; g < groups; g += 32) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      if (biased[e] > first)
        second = first, first = biased[e];
      else
        second = fmaxf(second, biased[e]);
    }
    group_scores[g] = first + (size > 1 ? second : 0);
  }
  __syncwarp();
  for (int kept = 0; kept < rule.kept_groups; ++kept) {
    const int g = warp_best(group_scores, groups, lane);
    __syncwarp();
    if (lane == 0) group_scores[g] = NAN;  // kept: never the best again, and told apart below
    __syncwarp();
  }
  for (int e = lane; e < num_experts; e += 32)
    if (!isnan(group_scores[e / size])) biased[e] = -INFINITY;
  __syncwarp();
}

__global__ void router_kernel(RouterRule rule, const float* __restrict__ logits, const float* __restrict__ bias, int32_t* experts, float* __restrict__ weights,
                              unsigned long long* counts, int64_t tokens, int num_experts, bool given) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = static_cast<int>(rule.k);
  float *scores = shared + warp * (2 * num_experts + static_cast<int>(rule.num_groups)), *biased = scores + num_experts, *group_scores = biased + num_experts;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + warp; t < tokens; t += static_cast<int64_t>(gridDim.x) * kWarps) {
    const float shift = logit_shift(rule.score, logits + t * num_experts, num_experts, lane);
    for (int e = lane; e < num_experts; e += 32) {
      scores[e] = router_score(rule.score, logits[t * num_experts + e] - shift);
      biased[e] = scores[e] + (bias ? bias[e] : 0);
    }
    __syncwarp();
    if (rule.num_groups > 1 && !given) drop_groups(biased, group_scores, rule, num_experts, lane);
    float sum = 0;
    for (int j = 0; j < k; ++j) {
      const int e = given ? experts[t * k + j] : warp_best(biased, num_experts, lane);
      sum += scores[e];
      if (lane == 0) {
        experts[t * k + j] = e;
        biased[e] = -INFINITY;
        if (counts) atomicAdd(counts + e, 1ull);
      }
      __syncwarp();
    }
    for (int j = lane; j < k; j += 32) {
      const float s = scores[experts[t * k + j]];
      weights[t * k + j] = rule.scaling * (rule.normalize ? s / (sum + 1e-20f) : s);
    }
    __syncwarp();
  }
}

__global__ void router_backward_kernel(RouterRule rule, const float* __restrict__ logits, const int32_t* __restrict__ experts, const float* __restrict__ dweights,
                                       float* __restrict__ dlogits, int64_t tokens, int num_experts) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = static_cast<int>(rule.k);
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + warp; t < tokens; t += static_cast<int64_t>(gridDim.x) * kWarps) {
    const float shift = logit_shift(rule.score, logits + t * num_experts, num_experts, lane);
    for (int e = lane; e < num_experts; e += 32) dlogits[t * num_experts + e] = 0;
    float sum = 0, dot = 0;
    for (int j = lane; j < k; j += 32) {
      const float s = router_score(rule.score, logits[t * num_experts + experts[t * k + j]] - shift);
      sum += s;
      dot += dweights[t * k + j] * s;
    }
    sum = warp_sum(sum) + 1e-20f;
    dot = warp_sum(dot) / sum;
    __syncwarp();
    for (int j = lane; j < k; j += 32) {
      const int64_t at = t * num_experts + experts[t * k + j];
      const float dw = dweights[t * k + j];
      dlogits[at] = (rule.normalize ? rule.scaling / sum * (dw - dot) : rule.scaling * dw) * router_slope(rule.score, logits[at] - shift);
    }
  }
}

__device__ int64_t run_of(const int32_t* starts, int64_t documents, int64_t token) {
  int64_t low = 0, high = documents;  // starts[low] <= token < starts[high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (starts[middle] <= token ? low : high) = middle;
  }
  return low;
}

struct Runs {
  const int32_t *starts, *documents;
  int64_t count;
  __device__ int64_t document_of(int64_t token) const { return documents[run_of(starts, count, token)]; }
};

__global__ void balance_counts_kernel(RouterScore score, const float* __restrict__ logits, Runs runs, int k, unsigned long long* counts, int64_t tokens, int num_experts) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* scores = shared + warp * num_experts;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + warp; t < tokens; t += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t row = runs.document_of(t) * num_experts;
    const float shift = logit_shift(score, logits + t * num_experts, num_experts, lane);
    for (int e = lane; e < num_experts; e += 32) scores[e] = router_score(score, logits[t * num_experts + e] - shift);
    __syncwarp();
    for (int j = 0; j < k; ++j) {
      const int e = warp_best(scores, num_experts, lane);
      __syncwarp();
      if (lane == 0) {
        atomicAdd(counts + row + e, 1ull);
        scores[e] = -INFINITY;
      }
      __syncwarp();
    }
  }
}

__global__ void balance_mass_kernel(RouterScore score, const float* __restrict__ logits, Runs runs, unsigned long long* mass, int64_t tokens, int num_experts) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + warp; t < tokens; t += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t row = runs.document_of(t) * num_experts;
    const float shift = logit_shift(score, logits + t * num_experts, num_experts, lane);
    float sum = 0;
    for (int e = lane; e < num_experts; e += 32) sum += router_score(score, logits[t * num_experts + e] - shift);
    sum = warp_sum(sum);
    for (int e = lane; e < num_experts; e += 32)
      atomicAdd(mass + row + e, static_cast<unsigned long long>(static_cast<double>(router_score(score, logits[t * num_experts + e] - shift) / sum) * kMassUnit));
  }
}

__global__ void balance_sum_kernel(const unsigned long long* __restrict__ counts, const unsigned long long* __restrict__ mass, const int32_t* __restrict__ document_tokens,
                                   int64_t documents, int k, int num_experts, double* loss_sum) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < documents * num_experts; i += 256) {
    const double tokens = document_tokens[i / num_experts];
    if (tokens > 0) sum += num_experts / (k * tokens * tokens) * static_cast<double>(counts[i]) * (static_cast<double>(mass[i]) / kMassUnit);
  }
  sum = block_sum<256>(sum);
  if (threadIdx.x == 0) *loss_sum += sum;
}

__global__ void balance_gradient_kernel(RouterScore score, const float* __restrict__ logits, Runs runs, const int32_t* __restrict__ document_tokens, int k, float grad_scale,
                                        const unsigned long long* __restrict__ counts, float* __restrict__ dlogits, int64_t tokens, int num_experts) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + warp; t < tokens; t += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t document = runs.document_of(t);
    const double length = document_tokens[document];
    const float unit = static_cast<float>(num_experts / (k * length * length));
    const float shift = logit_shift(score, logits + t * num_experts, num_experts, lane);
    float sum = 0, mean = 0;
    for (int e = lane; e < num_experts; e += 32) {
      const float s = router_score(score, logits[t * num_experts + e] - shift);
      sum += s;
      mean += unit * static_cast<float>(counts[document * num_experts + e]) * s;
    }
    sum = warp_sum(sum);
    mean = warp_sum(mean) / sum;
    for (int e = lane; e < num_experts; e += 32) {
      const float z = logits[t * num_experts + e] - shift;
      dlogits[t * num_experts + e] += grad_scale * (unit * static_cast<float>(counts[document * num_experts + e]) - mean) / sum * router_slope(score, z);
    }
  }
}

__global__ void bias_update_kernel(float* bias, long long* counts, float rate, int num_experts) {
  long long part = 0;
  for (int e = threadIdx.x; e < num_experts; e += 256) part += counts[e];
  const long long total = block_sum<256>(part);
  for (int e = threadIdx.x; e < num_experts; e += 256) {
    const long long above = counts[e] * num_experts - total;
    bias[e] += above > 0 ? -rate : above < 0 ? rate : 0;
    counts[e] = 0;
  }
}

}  // namespace

void router_cuda(const Router& r) {
  const int64_t tokens = r.logits.size(0);
  const int num_experts = static_cast<int>(r.logits.size(1));
  if (tokens == 0) return;
  const size_t shared = kWarps * static_cast<size_t>(2 * num_experts + r.rule.num_groups) * sizeof(float);
  router_kernel<<<grid_for(tokens, kWarps), kWarps * 32, shared, stream_of(r.stream)>>>(
      r.rule, r.logits.f32(), r.given || !r.bias.defined() ? nullptr : r.bias.f32(), r.experts.i32(), r.weights.f32(), r.counts.defined() ? r.counts.data<unsigned long long>() : nullptr, tokens, num_experts, r.given);
  check_launch("router");
}

void router_backward_cuda(const RouterBackward& r) {
  const int64_t tokens = r.logits.size(0);
  if (tokens == 0) return;
  router_backward_kernel<<<grid_for(tokens, kWarps), kWarps * 32, 0, stream_of(r.stream)>>>(r.rule, r.logits.f32(), r.experts.i32(), r.dweights.f32(), r.dlogits.f32(),
                                                                                           tokens, static_cast<int>(r.logits.size(1)));
  check_launch("router_backward");
}

namespace {
__global__ void hash_route_kernel(const int32_t* __restrict__ tokens, const float* __restrict__ table, int32_t* __restrict__ experts, int64_t slots, int k) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i < slots) experts[i] = static_cast<int32_t>(table[int64_t{tokens[i / k]} * k + i % k]);
}
}  // namespace

void hash_route_cuda(const HashRoute& r) {
  const int64_t slots = r.experts.elements();
  if (slots == 0) return;
  hash_route_kernel<<<static_cast<unsigned>((slots + 255) / 256), 256, 0, stream_of(r.stream)>>>(r.tokens.i32(), r.table.f32(), r.experts.i32(), slots,
                                                                                                static_cast<int>(r.experts.size(1)));
  check_launch("hash_route");
}

void balance_counts_cuda(const BalanceCounts& b) {
  const int64_t tokens = b.logits.size(0);
  const int num_experts = static_cast<int>(b.logits.size(1));
  if (tokens == 0) return;
  balance_counts_kernel<<<grid_for(tokens, kWarps), kWarps * 32, kWarps * static_cast<size_t>(num_experts) * sizeof(float), stream_of(b.stream)>>>(
      b.score, b.logits.f32(), {b.run_starts.i32(), b.run_documents.i32(), b.run_documents.size(0)}, static_cast<int>(b.k), b.counts.data<unsigned long long>(), tokens, num_experts);
  check_launch("balance_counts");
}

void balance_loss_cuda(const BalanceLoss& b) {
  const int64_t tokens = b.logits.size(0), documents = b.counts.size(0);
  const int num_experts = static_cast<int>(b.logits.size(1)), k = static_cast<int>(b.k);
  if (tokens == 0) return;
  const cudaStream_t stream = stream_of(b.stream);
  auto* mass = Workspace(b.workspace).take<unsigned long long>(documents * num_experts);
  check_cuda(cudaMemsetAsync(mass, 0, static_cast<size_t>(documents * num_experts) * 8, stream), "balance_loss");
  const unsigned grid = grid_for(tokens, kWarps);
  const Runs runs{b.run_starts.i32(), b.run_documents.i32(), b.run_documents.size(0)};
  const auto* counts = b.counts.data<unsigned long long>();
  balance_mass_kernel<<<grid, kWarps * 32, 0, stream>>>(b.score, b.logits.f32(), runs, mass, tokens, num_experts);
  balance_sum_kernel<<<1, 256, 0, stream>>>(counts, mass, b.document_tokens.i32(), documents, k, num_experts, b.loss_sum.data<double>());
  balance_gradient_kernel<<<grid, kWarps * 32, 0, stream>>>(b.score, b.logits.f32(), runs, b.document_tokens.i32(), k, b.grad_scale, counts, b.dlogits.f32(), tokens, num_experts);
  check_launch("balance_loss");
}

void router_bias_update_cuda(const Tensor& bias, const Tensor& counts, float rate, Stream stream) {
  bias_update_kernel<<<1, 256, 0, stream_of(stream)>>>(bias.f32(), counts.data<long long>(), rate, static_cast<int>(bias.size(0)));
  check_launch("router_bias_update");
}

}  // namespace hyscale
