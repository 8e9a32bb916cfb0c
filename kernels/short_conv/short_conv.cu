// Backward: a thread owns channels and walks a run of tokens downwards, one residue of the dilation after the other, so that the taps'
// inputs and the gradients of later tokens slide through registers.
#include "kernels/common/column_sums.cuh"
#include "kernels/common/op.h"
#include "kernels/short_conv/short_conv.h"

namespace hyscale {
namespace {

constexpr int kThreads = 128, kMostTaps = 8, kRun = 16;  // kRun: neighbouring tokens of a thread, forward

struct Sizes {
  int64_t tokens, channels;
  int taps, dilation;
  template <typename Conv>
  explicit Sizes(const Conv& c) : tokens(c.x.size(0)), channels(c.x.size(1)), taps(static_cast<int>(c.weight.size(1))), dilation(static_cast<int>(c.dilation)) {}
};

// w[m] meets the token m * dilation places back; 0 beyond the taps there are.
template <typename W, int kTaps, int kWidth>
__device__ __forceinline__ void load_taps(const W* weight, const Sizes& n, int64_t channel, float (&w)[kTaps][kWidth]) {
#pragma unroll
  for (int m = 0; m < kTaps; ++m)
#pragma unroll
    for (int i = 0; i < kWidth; ++i) w[m][i] = m < n.taps ? to_f32(weight[(channel + i) * n.taps + n.taps - 1 - m]) : 0;
}

template <typename T, typename W, int kTaps, int kWidth>
__global__ void __launch_bounds__(kThreads) short_conv_kernel(const T* __restrict__ x, const W* __restrict__ weight, const int32_t* __restrict__ positions, T* __restrict__ y,
                                                              Sizes n) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (channel >= n.channels) return;
  float w[kTaps][kWidth];
  load_taps(weight, n, channel, w);
  for (int64_t i = 0, t; (t = (i / kRun * gridDim.y + blockIdx.y) * kRun + i % kRun) < n.tokens; ++i) {
    const int position = positions[t];
    float u[kWidth] = {}, v[kWidth];
#pragma unroll
    for (int m = 0; m < kTaps; ++m) {
      if (m >= n.taps || m * n.dilation > position) break;
      load_pack(x + (t - m * n.dilation) * n.channels + channel, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) u[i] += w[m][i] * v[i];
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) u[i] = u[i] / (1 + __expf(-u[i]));
    store_pack(y + t * n.channels + channel, u);
  }
}

// partial: f32 [256, C, K]. Block row b walks tokens [b, b + 1) * per_block.
template <typename T, typename W, int kTaps, int kWidth>
__global__ void __launch_bounds__(kThreads) short_conv_backward_kernel(const T* __restrict__ x, const W* __restrict__ weight, const int32_t* __restrict__ positions,
                                                                       const T* __restrict__ dy, T* __restrict__ dx, float* __restrict__ partial, Sizes n) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (channel >= n.channels) return;
  const int64_t per_block = (n.tokens + kColumnSumBlocks - 1) / kColumnSumBlocks, first = blockIdx.y * per_block;
  const int64_t last = first + per_block < n.tokens ? first + per_block : n.tokens;
  float w[kTaps][kWidth], dw[kTaps][kWidth] = {};
  load_taps(weight, n, channel, w);
  for (int64_t residue = 0; residue < n.dilation && first + residue < last; ++residue) {
    float xs[kTaps][kWidth] = {}, dus[kTaps][kWidth] = {};  // of the tokens m steps back, and of those m steps ahead
    int ahead[kTaps] = {};                                  // positions of the latter
    const int64_t lowest = first + residue, emitted = (last - 1 - lowest) / n.dilation, top = emitted + n.taps - 1;
    const auto load_x = [&](int64_t step, float (&to)[kWidth]) {
      const int64_t t = lowest + step * n.dilation;
      if (t >= 0 && t < n.tokens) load_pack(x + t * n.channels + channel, to);
    };
#pragma unroll
    for (int m = 0; m + 1 < kTaps; ++m) load_x(top - m, xs[m]);
    for (int64_t step = top; step >= 0; --step) {
      load_x(step - kTaps + 1, xs[kTaps - 1]);
      const int64_t t = lowest + step * n.dilation;
      const int position = t < n.tokens ? positions[t] : -1;
      float u[kWidth] = {}, d[kWidth] = {}, sum[kWidth] = {};
      if (t < n.tokens) load_pack(dy + t * n.channels + channel, d);
#pragma unroll
      for (int m = 0; m < kTaps; ++m)
#pragma unroll
        for (int i = 0; i < kWidth; ++i) u[i] += m * n.dilation <= position ? w[m][i] * xs[m][i] : 0;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float s = 1 / (1 + __expf(-u[i]));
        dus[0][i] = d[i] * s * (1 + u[i] * (1 - s));
      }
      ahead[0] = position;
      if (step <= emitted) {
        // A later token of the same document has its position further along by as much.
#pragma unroll
        for (int m = 0; m < kTaps; ++m)
#pragma unroll
          for (int i = 0; i < kWidth; ++i) {
            sum[i] += ahead[m] >= m * n.dilation ? w[m][i] * dus[m][i] : 0;
            dw[m][i] += m * n.dilation <= position ? dus[0][i] * xs[m][i] : 0;
          }
        store_pack(dx + t * n.channels + channel, sum);
      }
#pragma unroll
      for (int m = kTaps - 1; m > 0; --m) {
        ahead[m] = ahead[m - 1];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) dus[m][i] = dus[m - 1][i];
      }
#pragma unroll
      for (int m = 0; m + 1 < kTaps; ++m)
#pragma unroll
        for (int i = 0; i < kWidth; ++i) xs[m][i] = xs[m + 1][i];
    }
  }
#pragma unroll
  for (int m = 0; m < kTaps; ++m) {
    if (m >= n.taps) break;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) partial[(blockIdx.y * n.channels + channel + i) * n.taps + n.taps - 1 - m] = dw[m][i];
  }
}

// Calls function(T{}, W{}, taps, width) with the dtypes of x and weight, room for the taps, and the channels of a thread, the latter two
// as constants.
template <typename Conv, typename Function, typename... Tensors>
void with_kinds(const Conv& c, const char* op, Function function, const Tensors&... rows) {
  HYSCALE_CHECK(c.weight.size(1) <= kMostTaps && c.weight.is_contiguous(), "weight ", to_string(c.weight), "; contiguous and at most ", kMostTaps, " taps on CUDA");
  with_float_type(c.x.dtype(), op, [&](auto type) {
    with_float_type(c.weight.dtype(), op, [&](auto weight_type) {
      constexpr std::integral_constant<int, 1> one;
      if (c.weight.size(1) > 4) return function(type, weight_type, std::integral_constant<int, kMostTaps>{}, one);
      constexpr std::integral_constant<int, 4> four;
      common_pack(c.x.size(1), rows...) == 8 ? function(type, weight_type, four, std::integral_constant<int, 2>{}) : function(type, weight_type, four, one);
    });
  });
}

}  // namespace

void short_conv_cuda(const ShortConv& c) {
  const Sizes n(c);
  if (c.x.elements() == 0) return;
  with_kinds(c, "short_conv", [&](auto type, auto weight_type, auto taps, auto width) {
    using T = decltype(type);
    using W = decltype(weight_type);
    const dim3 grid(grid_for(n.channels, kThreads * width), grid_for(n.tokens, kRun, 65535));
    short_conv_kernel<T, W, taps, width><<<grid, kThreads, 0, stream_of(c.stream)>>>(c.x.data<T>(), c.weight.data<W>(), c.positions.i32(), c.y.data<T>(), n);
  }, c.x, c.y);
  check_launch("short_conv");
}

void short_conv_backward_cuda(const ShortConvBackward& c) {
  const Sizes n(c);
  if (c.x.elements() == 0) return;
  Workspace workspace(c.workspace);
  const int64_t sums = n.channels * n.taps;
  float* partial = workspace.take<float>(kColumnSumBlocks * sums);
  HYSCALE_CHECK(c.dweight.is_contiguous(), "dweight ", to_string(c.dweight), " is contiguous");
  with_kinds(c, "short_conv_backward", [&](auto type, auto weight_type, auto taps, auto width) {
    using T = decltype(type);
    using W = decltype(weight_type);
    const dim3 grid(grid_for(n.channels, kThreads * width), kColumnSumBlocks);
    short_conv_backward_kernel<T, W, taps, width><<<grid, kThreads, 0, stream_of(c.stream)>>>(c.x.data<T>(), c.weight.data<W>(), c.positions.i32(), c.dy.data<T>(), c.dx.data<T>(), partial, n);
  }, c.x, c.dy, c.dx);
  add_partial_columns_kernel<<<grid_for(sums, 128), 128, 0, stream_of(c.stream)>>>(c.dweight.f32(), partial, sums);
  check_launch("short_conv_backward");
}

size_t short_conv_backward_cuda_workspace_bytes(const ShortConvBackward& c) { return aligned_bytes(static_cast<size_t>(kColumnSumBlocks * c.weight.elements()) * sizeof(float)); }

}  // namespace hyscale
