// One warp per row: the rows of the indexer's keys are 64 or 128 wide.
#include "kernels/common/column_sums.cuh"
#include "kernels/common/op.h"
#include "kernels/layer_norm/layer_norm.h"

namespace hyscale {
namespace {

constexpr int kWarps = 8;

// Terms of the column sums: dy * x^ for the weight, dy for the bias.
template <typename T, typename D>
struct WeightTerm {
  const T* x;
  const D* dy;
  const float *means, *rstds;
  int64_t x_step, dy_step;
  __device__ float operator()(int64_t t, int64_t c) const { return to_f32(dy[t * dy_step + c]) * ((to_f32(x[t * x_step + c]) - means[t]) * rstds[t]); }
};
template <typename D>
struct BiasTerm {
  const D* dy;
  int64_t dy_step;
  __device__ float operator()(int64_t t, int64_t c) const { return to_f32(dy[t * dy_step + c]); }
};

template <typename T>
__global__ void layer_norm_kernel(const T* __restrict__ x, int64_t x_step, const T* __restrict__ weight, const T* __restrict__ bias, float eps, T* __restrict__ y,
                                  int64_t y_step, float* __restrict__ means, float* __restrict__ rstds, int64_t rows, int64_t columns) {
  const int lane = threadIdx.x % 32;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; t < rows; t += static_cast<int64_t>(gridDim.x) * kWarps) {
    float sum = 0, squares = 0;
    for (int64_t c = lane; c < columns; c += 32) sum += to_f32(x[t * x_step + c]);
    const float mean = warp_sum(sum) / static_cast<float>(columns);
    for (int64_t c = lane; c < columns; c += 32) {
      const float d = to_f32(x[t * x_step + c]) - mean;
      squares += d * d;
    }
    const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(columns) + eps);
    for (int64_t c = lane; c < columns; c += 32)
      y[t * y_step + c] = from_f32<T>((to_f32(x[t * x_step + c]) - mean) * rstd * to_f32(weight[c]) + to_f32(bias[c]));
    if (lane == 0) means[t] = mean, rstds[t] = rstd;
  }
}

template <typename T, typename D>
__global__ void layer_norm_backward_kernel(const T* __restrict__ x, int64_t x_step, const T* __restrict__ weight, const float* __restrict__ means,
                                           const float* __restrict__ rstds, const D* __restrict__ dy, int64_t dy_step, T* __restrict__ dx, int64_t dx_step,
                                           int64_t rows, int64_t columns) {
  const int lane = threadIdx.x % 32;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; t < rows; t += static_cast<int64_t>(gridDim.x) * kWarps) {
    const float mean = means[t], rstd = rstds[t];
    float sum = 0, dot = 0;
    for (int64_t c = lane; c < columns; c += 32) {
      const float g = to_f32(dy[t * dy_step + c]) * to_f32(weight[c]);
      sum += g;
      dot += g * (to_f32(x[t * x_step + c]) - mean) * rstd;
    }
    sum = warp_sum(sum) / static_cast<float>(columns);
    dot = warp_sum(dot) / static_cast<float>(columns);
    for (int64_t c = lane; c < columns; c += 32) {
      const float g = to_f32(dy[t * dy_step + c]) * to_f32(weight[c]);
      dx[t * dx_step + c] = from_f32<T>(rstd * (g - sum - (to_f32(x[t * x_step + c]) - mean) * rstd * dot));
    }
  }
}

}  // namespace

void layer_norm_cuda(const LayerNorm& n) {
  const int64_t rows = n.x.size(0), columns = n.x.size(1);
  if (rows == 0) return;
  with_float_type(n.x.dtype(), "layer_norm", [&](auto type) {
    using T = decltype(type);
    layer_norm_kernel<T><<<grid_for(rows, kWarps), kWarps * 32, 0, stream_of(n.stream)>>>(n.x.data<T>(), n.x.stride(0), n.weight.data<T>(), n.bias.data<T>(), n.eps,
                                                                                          n.y.data<T>(), n.y.stride(0), n.mean.f32(), n.rstd.f32(), rows, columns);
  });
  check_launch("layer_norm");
}

void layer_norm_backward_cuda(const LayerNormBackward& n) {
  const int64_t rows = n.x.size(0), columns = n.x.size(1);
  if (rows == 0) return;
  Workspace workspace(n.workspace);
  float* partial = workspace.take<float>(kColumnSumBlocks * columns);
  with_float_type(n.x.dtype(), "layer_norm_backward", [&](auto type) {
    using T = decltype(type);
    with_float_type(n.dy.dtype(), "layer_norm_backward", [&](auto gradient_type) {
      using D = decltype(gradient_type);
      const T* x = n.x.data<T>();
      const D* dy = n.dy.data<D>();
      const int64_t x_step = n.x.stride(0), dy_step = n.dy.stride(0);
      const float *means = n.mean.f32(), *rstds = n.rstd.f32();
      column_sums_cuda(n.dweight.f32(), partial, rows, columns, WeightTerm<T, D>{x, dy, means, rstds, x_step, dy_step}, stream_of(n.stream));
      column_sums_cuda(n.dbias.f32(), partial, rows, columns, BiasTerm<D>{dy, dy_step}, stream_of(n.stream));
      layer_norm_backward_kernel<T, D><<<grid_for(rows, kWarps), kWarps * 32, 0, stream_of(n.stream)>>>(
          x, x_step, n.weight.data<T>(), means, rstds, dy, dy_step, n.dx.data<T>(), n.dx.stride(0), rows, columns);
    });
  });
  check_launch("layer_norm_backward");
}

}  // namespace hyscale
