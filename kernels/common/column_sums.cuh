// out[c] += sum over rows of term(row, c) in an order that is the same in every run: 256 blocks of rows, then the blocks.
#pragma once
#include "kernels/common/cuda.cuh"

namespace hyscale {

constexpr int kColumnSumBlocks = 256;

template <typename Term>
__global__ void column_sums_kernel(float* __restrict__ partial, int64_t rows, int64_t columns, Term term) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t per_block = (rows + kColumnSumBlocks - 1) / kColumnSumBlocks, first = blockIdx.y * per_block;
  const int64_t last = first + per_block < rows ? first + per_block : rows;
  if (c >= columns) return;
  float sum = 0;
  for (int64_t row = first; row < last; ++row) sum += term(row, c);
  partial[blockIdx.y * columns + c] = sum;
}

static __global__ void add_partial_columns_kernel(float* __restrict__ out, const float* __restrict__ partial, int64_t columns) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= columns) return;
  float sum = 0;
  for (int b = 0; b < kColumnSumBlocks; ++b) sum += partial[b * columns + c];
  out[c] += sum;
}

// partial: f32 [256, columns].
template <typename Term>
void column_sums_cuda(float* out, float* partial, int64_t rows, int64_t columns, Term term, cudaStream_t stream) {
  const dim3 grid(grid_for(columns, 128), kColumnSumBlocks);
  column_sums_kernel<<<grid, 128, 0, stream>>>(partial, rows, columns, term);
  add_partial_columns_kernel<<<grid.x, 128, 0, stream>>>(out, partial, columns);
  check_launch("column sums");
}

}  // namespace hyscale
