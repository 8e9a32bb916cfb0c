#include "kernels/common/cuda.cuh"
#include "kernels/lm_head_loss/cross_entropy.h"

namespace hyscale {
namespace {

constexpr int kThreads = 512;

// One block per row; the row is read twice (a maximum with its sum as it goes, then the gradient).
template <typename T>
__global__ void cross_entropy_kernel(const float* logits, const int32_t* __restrict__ labels, float grad_scale, T* dlogits, double* __restrict__ losses, int64_t vocabulary) {
  const int64_t t = blockIdx.x;
  const float* z = logits + t * vocabulary;
  const int32_t label = labels[t];
  if (label < 0) {
    if (dlogits)
      for (int64_t v = threadIdx.x; v < vocabulary; v += kThreads) dlogits[t * vocabulary + v] = from_f32<T>(0);
    if (threadIdx.x == 0) losses[t] = 0;
    return;
  }
  float top = -INFINITY, sum = 0;
  for (int64_t v = threadIdx.x; v < vocabulary; v += kThreads) {
    const float x = z[v];
    if (x > top) sum *= __expf(top - x), top = x;
    sum += __expf(x - top);
  }
  const float row_top = block_max<kThreads>(top);
  const float row_sum = block_sum<kThreads>(top == -INFINITY ? 0 : sum * __expf(top - row_top));
  if (threadIdx.x == 0) losses[t] = log(static_cast<double>(row_sum)) + row_top - z[label];
  if (!dlogits) return;
  __syncthreads();  // z[label] is read before it may be overwritten
  const float factor = grad_scale / row_sum;
  for (int64_t v = threadIdx.x; v < vocabulary; v += kThreads)
    dlogits[t * vocabulary + v] = from_f32<T>(factor * __expf(z[v] - row_top) - (v == label ? grad_scale : 0));
}

__global__ void add_losses_kernel(const double* __restrict__ losses, int64_t rows, double* sum) {
  double part = 0;
  for (int64_t t = threadIdx.x; t < rows; t += kThreads) part += losses[t];
  part = block_sum<kThreads>(part);
  if (threadIdx.x == 0) *sum += part;
}

}  // namespace

void cross_entropy_cuda(const CrossEntropy& c) {
  const int64_t rows = c.logits.size(0), vocabulary = c.logits.size(1);
  if (rows == 0) return;
  double* losses = c.loss_rows.data<double>();
  const DType type = c.dlogits.defined() ? c.dlogits.dtype() : DType::f32;
  with_float_type(type, "cross_entropy", [&](auto tag) {
    using T = decltype(tag);
    cross_entropy_kernel<T><<<static_cast<unsigned>(rows), kThreads, 0, stream_of(c.stream)>>>(c.logits.f32(), c.labels.i32(), c.grad_scale,
                                                                                              c.dlogits.defined() ? c.dlogits.data<T>() : nullptr, losses, vocabulary);
  });
  add_losses_kernel<<<1, kThreads, 0, stream_of(c.stream)>>>(losses, rows, c.loss_sum.data<double>());
  check_launch("cross_entropy");
}

}  // namespace hyscale
