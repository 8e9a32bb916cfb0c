// Divergence of the index loss on CUDA, shared by its forms.
#pragma once
#include "kernels/common/cuda.cuh"

namespace hyscale {

// Scores become the gradient grad_scale * (r - p); returns KL(p || r), the same in all of the `threads` threads that call;
// sum(x) and max(x) reduce over them.
template <typename Sum, typename Max>
__device__ __forceinline__ float divergence(float* scores, const float* head_sum, int count, float grad_scale, int thread, int threads, Sum sum, Max max) {
  float teacher = 0, top = -INFINITY, student = 0, loss = 0;
  for (int j = thread; j < count; j += threads) teacher += head_sum[j], top = fmaxf(top, scores[j]);
  teacher = sum(teacher);
  top = max(top);
  for (int j = thread; j < count; j += threads) student += expf(scores[j] - top);
  const float lse = top + logf(sum(student));
  for (int j = thread; j < count; j += threads) {
    const float p = head_sum[j] / teacher, log_r = scores[j] - lse;
    if (p > 0) loss += p * (logf(p) - log_r);
    scores[j] = grad_scale * (expf(log_r) - p);
  }
  return sum(loss);
}

}  // namespace hyscale
