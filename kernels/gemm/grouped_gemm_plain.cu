// Grouped products of f32 matrices without tensor cores, a thread per element: for models that are held against the CPU.
#include "kernels/common/cuda.cuh"
#include "kernels/gemm/grouped_gemm_cuda.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256;

// out[r, j] = sum over i of in[r, i] w[e][...]: the forward product has w stored [columns][depth], dgrad [depth][columns].
__global__ void grouped_rows_kernel(const float* __restrict__ in, const float* __restrict__ w, float* __restrict__ out, const int32_t* __restrict__ offsets, int64_t experts,
                                    int64_t columns, int64_t depth, bool forward) {
  const int64_t count = offsets[experts] * columns;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < count; at += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = at / columns, column = at % columns;
    int64_t expert = 0;
    while (row >= offsets[expert + 1]) ++expert;
    const float* matrix = w + expert * columns * depth + (forward ? column * depth : column);
    float sum = 0;
    for (int64_t i = 0; i < depth; ++i) sum += in[row * depth + i] * matrix[forward ? i : i * columns];
    out[at] = sum;
  }
}

// dw[e][i, j] += sum over rows of the group of dy[row, i] x[row, j].
__global__ void grouped_wgrad_kernel(const float* __restrict__ dy, const float* __restrict__ x, float* __restrict__ dw, const int32_t* __restrict__ offsets, int64_t n, int64_t k,
                                     int64_t count) {
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < count; at += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t expert = at / (n * k), i = at / k % n, j = at % k;
    float sum = 0;
    for (int64_t row = offsets[expert]; row < offsets[expert + 1]; ++row) sum += dy[row * n + i] * x[row * k + j];
    dw[at] += sum;
  }
}

}  // namespace

void grouped_gemm_rows_plain(const GroupedGemm& g, const Tensor& in, const Tensor& out, bool forward) {
  grouped_rows_kernel<<<grid_for(out.elements(), kThreads), kThreads, 0, stream_of(g.stream)>>>(in.f32(), g.w.f32(), out.f32(), g.offsets.i32(), g.w.size(0), out.size(1),
                                                                                              in.size(1), forward);
  check_launch("grouped gemm");
}

void grouped_gemm_wgrad_plain(const GroupedGemm& g) {
  grouped_wgrad_kernel<<<grid_for(g.w.elements(), kThreads), kThreads, 0, stream_of(g.stream)>>>(g.y.f32(), g.x.f32(), g.w.f32(), g.offsets.i32(), g.w.size(1), g.w.size(2),
                                                                                               g.w.elements());
  check_launch("grouped gemm wgrad");
}

}  // namespace hyscale
