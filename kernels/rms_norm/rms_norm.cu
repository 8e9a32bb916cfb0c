#include "kernels/common/column_sums.cuh"
#include "kernels/common/op.h"
#include "kernels/common/residual_types.cuh"
#include "kernels/rms_norm/rms_norm.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kNarrow = 1024;  // rows of at most so many columns get a warp each, wider ones a block

// Which row a thread works on first, its place in the row, and sums over the row.
template <bool kWarp>
struct Row {
  static constexpr int kLanes = kWarp ? 32 : kThreads, kPerBlock = kThreads / kLanes;
  int64_t first = static_cast<int64_t>(blockIdx.x) * kPerBlock + threadIdx.x / kLanes, step = static_cast<int64_t>(gridDim.x) * kPerBlock;
  int lane = static_cast<int>(threadIdx.x) % kLanes;
  __device__ static float sum(float x) {
    if constexpr (kWarp) return warp_sum(x);
    else return block_sum<kThreads>(x);
  }
};

// Term of the weight's column sum: dy * x^.
template <typename X, typename T>
struct WeightTerm {
  const X* x;
  const T* dy;
  const float* rstd;
  int64_t x_step, dy_step;
  __device__ float operator()(int64_t t, int64_t c) const { return to_f32(dy[t * dy_step + c]) * (to_f32(x[t * x_step + c]) * rstd[t]); }
};

template <typename T, int kWidth>
__device__ __forceinline__ void load_weight(const T* weight, int64_t c, float (&w)[kWidth]) {
  if (weight) return load_pack(weight + c, w);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) w[i] = 1;
}

template <typename X, typename T, int kWidth, bool kWarp>
__global__ void rms_norm_kernel(const X* __restrict__ x, int64_t x_step, const T* __restrict__ weight, float offset, float eps, T* y, int64_t y_step, float* rstd, int64_t rows,
                                int64_t columns) {
  using R = Row<kWarp>;
  const R row;
  for (int64_t t = row.first; t < rows; t += row.step) {
    float squares = 0;
    for (int64_t c = row.lane * kWidth; c < columns; c += R::kLanes * kWidth) {
      float v[kWidth];
      load_pack(x + t * x_step + c, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) squares += v[i] * v[i];
    }
    const float r = rsqrtf(R::sum(squares) / static_cast<float>(columns) + eps);
    for (int64_t c = row.lane * kWidth; c < columns; c += R::kLanes * kWidth) {
      float v[kWidth], w[kWidth];
      load_pack(x + t * x_step + c, v);
      load_weight(weight, c, w);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v[i] = (offset + w[i]) * (v[i] * r);
      store_pack(y + t * y_step + c, v);
    }
    if (rstd && row.lane == 0) rstd[t] = r;
  }
}

// dx may be the memory of dy: every element is read before it is written by the same thread.
template <typename X, typename T, typename D, int kWidth, bool kWarp>
__global__ void rms_norm_backward_kernel(const X* __restrict__ x, int64_t x_step, const T* __restrict__ weight, float offset, const float* __restrict__ rstd, const T* dy,
                                         int64_t dy_step, D* dx, int64_t dx_step, bool accumulate, int64_t rows, int64_t columns) {
  using R = Row<kWarp>;
  const R row;
  for (int64_t t = row.first; t < rows; t += row.step) {
    const float r = rstd[t];
    float dot = 0;
    for (int64_t c = row.lane * kWidth; c < columns; c += R::kLanes * kWidth) {
      float v[kWidth], w[kWidth], d[kWidth];
      load_pack(x + t * x_step + c, v);
      load_weight(weight, c, w);
      load_pack(dy + t * dy_step + c, d);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) dot += d[i] * (offset + w[i]) * (v[i] * r);
    }
    const float mean = R::sum(dot) / static_cast<float>(columns);
    for (int64_t c = row.lane * kWidth; c < columns; c += R::kLanes * kWidth) {
      float v[kWidth], w[kWidth], d[kWidth], old[kWidth] = {};
      load_pack(x + t * x_step + c, v);
      load_weight(weight, c, w);
      load_pack(dy + t * dy_step + c, d);
      if (accumulate) load_pack(dx + t * dx_step + c, old);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) d[i] = old[i] + r * (d[i] * (offset + w[i]) - v[i] * r * mean);
      store_pack(dx + t * dx_step + c, d);
    }
  }
}

}  // namespace

void rms_norm_cuda(const RmsNorm& n) {
  const int64_t rows = n.x.size(0), columns = n.x.size(1);
  if (rows == 0) return;
  with_residual_types(n.x.dtype(), n.y.dtype(), "rms_norm", [&](auto residual, auto type) {
    using X = decltype(residual);
    using T = decltype(type);
    const auto launch = [&](auto kernel) {
      kernel<<<grid_for(rows, columns <= kNarrow ? kThreads / 32 : 1), kThreads, 0, stream_of(n.stream)>>>(n.x.data<X>(), n.x.stride(0), n.weight.defined() ? n.weight.data<T>() : nullptr, n.weight_offset, n.eps, n.y.data<T>(), n.y.stride(0),
                                                                      n.rstd.defined() ? n.rstd.f32() : nullptr, rows, columns);
    };
    const auto of_width = [&](auto warp) { common_pack(columns, n.x, n.weight, n.y) == 8 ? launch(rms_norm_kernel<X, T, 8, warp>) : launch(rms_norm_kernel<X, T, 1, warp>); };
    columns <= kNarrow ? of_width(std::true_type{}) : of_width(std::false_type{});
  });
  check_launch("rms_norm");
}

void rms_norm_backward_cuda(const RmsNormBackward& n) {
  const int64_t rows = n.x.size(0), columns = n.x.size(1);
  if (rows == 0) return;
  with_residual_types(n.x.dtype(), n.dy.dtype(), "rms_norm_backward", [&](auto residual, auto type) {
    using X = decltype(residual);
    using T = decltype(type);
    const X* x = n.x.data<X>();
    const T* dy = n.dy.data<T>();
    const int64_t x_step = n.x.stride(0), dy_step = n.dy.stride(0);
    const float* rstd = n.rstd.f32();
    if (n.dweight.defined()) {
      Workspace workspace(n.workspace);
      column_sums_cuda(n.dweight.f32(), workspace.take<float>(kColumnSumBlocks * columns), rows, columns, WeightTerm<X, T>{x, dy, rstd, x_step, dy_step}, stream_of(n.stream));
    }
    const auto into = [&](auto gradient) {
      using D = decltype(gradient);
      const auto launch = [&](auto kernel) {
        kernel<<<grid_for(rows, columns <= kNarrow ? kThreads / 32 : 1), kThreads, 0, stream_of(n.stream)>>>(x, x_step, n.weight.defined() ? n.weight.data<T>() : nullptr, n.weight_offset, rstd, dy, dy_step, n.dx.data<D>(), n.dx.stride(0),
                                                                        n.accumulate_dx, rows, columns);
      };
      const auto of_width = [&](auto warp) {
        common_pack(columns, n.x, n.weight, n.dy, n.dx) == 8 ? launch(rms_norm_backward_kernel<X, T, D, 8, warp>) : launch(rms_norm_backward_kernel<X, T, D, 1, warp>);
      };
      columns <= kNarrow ? of_width(std::true_type{}) : of_width(std::false_type{});
    };
    n.dx.dtype() == n.x.dtype() ? into(X{}) : into(T{});
  });
  check_launch("rms_norm_backward");
}

}  // namespace hyscale
