// The warm-up index loss on CUDA: for each block of queries the teacher's probabilities and the student's scores of all visible
// keys, then each query's divergence and score gradients, then the gradients of the indexer. bf16 inputs, f32 tables.
#include "kernels/common/cuda.cuh"
#include "kernels/common/op.h"
#include "kernels/dense_index_loss/dense_index_loss_cuda.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256;

// Teacher of blocks: the largest mass of a block's keys. A row of threads per query.
__global__ void __launch_bounds__(kThreads) block_masses_kernel(const float* __restrict__ masses, const int32_t* __restrict__ first_token, const int32_t* __restrict__ begin,
                                                                const int32_t* __restrict__ end, int64_t first_query, int64_t keys, int64_t blocks, int64_t ratio, float* teacher) {
  const int64_t t = first_query + blockIdx.y, e = begin[t] + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (e >= end[t]) return;
  const float* mass = masses + blockIdx.y * keys + first_token[e];
  float most = 0;
  for (int64_t i = 0; i < ratio; ++i) most = mass[i] > most || mass[i] != mass[i] ? mass[i] : most;
  teacher[blockIdx.y * blocks + e] = most;
}

// A block per query: teacher becomes grad_scale * (r - p), losses[t] the divergence.
__global__ void __launch_bounds__(kThreads) divergence_kernel(float* __restrict__ teacher, const float* __restrict__ scores, const int32_t* __restrict__ begin,
                                                              const int32_t* __restrict__ end, int64_t first_query, int64_t keys, float grad_scale, double* losses) {
  const int64_t t = first_query + blockIdx.x, first = begin[t] + static_cast<int64_t>(threadIdx.x), last = end[t];
  float* p = teacher + blockIdx.x * keys;
  const float* score = scores + blockIdx.x * keys;
  float most = -INFINITY, sum = 0, mass = 0;
  for (int64_t s = first; s < last; s += kThreads) most = fmaxf(most, score[s]), mass += p[s];
  most = block_max<kThreads>(most);
  mass = block_sum<kThreads>(mass);
  for (int64_t s = first; s < last; s += kThreads) sum += expf(score[s] - most);
  const float lse = most + logf(block_sum<kThreads>(sum));
  double loss = 0;
  for (int64_t s = first; s < last; s += kThreads) {
    const float share = p[s] / mass, log_r = score[s] - lse;
    if (share > 0) loss += share * (logf(share) - log_r);
    else if (share != share) loss = share;
    p[s] = grad_scale * (expf(log_r) - share);
  }
  loss = block_sum<kThreads>(loss);
  if (threadIdx.x == 0) losses[t] = loss;
}

// loss_sum += losses in a fixed order: each thread a contiguous share, then threads in order.
__global__ void __launch_bounds__(kThreads) add_losses_kernel(const double* __restrict__ losses, int64_t queries, double* loss_sum) {
  const int64_t share = (queries + kThreads - 1) / kThreads;
  double sum = 0;
  for (int64_t t = threadIdx.x * share; t < min(queries, (threadIdx.x + 1) * share); ++t) sum += losses[t];
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) *loss_sum += sum;
}

}  // namespace

void dense_index_loss_cuda(const DenseIndexLoss& l) {
  const int64_t queries = l.q.size(0), keys = l.k.size(0), scored = l.index_keys.size(0);
  for (const Tensor* t : {&l.q, &l.k, &l.index_q, &l.index_keys, &l.dindex_q})
    HYSCALE_CHECK(t->dtype() == DType::bf16, "the dense index loss on CUDA takes bf16, not ", to_string(*t));
  HYSCALE_CHECK(keys <= INT32_MAX, keys, " keys");
  if (queries == 0) return;
  Workspace workspace(l.workspace);
  double* losses = workspace.take<double>(queries);
  const int64_t block = dense_loss::query_block(queries, keys);
  float *masses = workspace.take<float>(block * keys), *scores = workspace.take<float>(block * scored), *teacher = l.in_blocks() ? workspace.take<float>(block * scored) : masses;
  const int32_t *begin = l.scored_begin().i32(), *end = l.scored_end().i32();
  const bool tensor_cores = dense_loss::has_tensor_core_form(l);
  for (int64_t first = 0; first < queries; first += block) {
    const dense_loss::QueryBlock b{&l, first, std::min(queries, first + block), masses, teacher, scores};
    tensor_cores ? head_sums(b) : head_sums_plain(b);
    const unsigned rows = static_cast<unsigned>(b.last - first);
    if (l.in_blocks() && scored > 0)
      block_masses_kernel<<<dim3(grid_for(scored, kThreads), rows), kThreads, 0, stream_of(l.stream)>>>(masses, l.blocks.first_token.i32(), begin, end, first, keys, scored, l.blocks.ratio,
                                                                                                        teacher);
    divergence_kernel<<<rows, kThreads, 0, stream_of(l.stream)>>>(teacher, scores, begin, end, first, scored, l.grad_scale, losses);
    tensor_cores ? gradients(b) : gradients_plain(b);
  }
  add_losses_kernel<<<1, kThreads, 0, stream_of(l.stream)>>>(losses, queries, l.loss_sum.data<double>());
  check_launch("dense_index_loss");
}

}  // namespace hyscale
