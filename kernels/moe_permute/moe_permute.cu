#include <cub/device/device_radix_sort.cuh>

#include "kernels/common/op.h"
#include "kernels/common/packs.cuh"
#include "kernels/common/residual_types.cuh"
#include "kernels/moe_permute/moe_permute.h"

namespace hyscale {
namespace {

constexpr int kThreads = 128;

__global__ void slots_kernel(int32_t* slots, int64_t count) {
  for (int64_t s = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; s < count; s += static_cast<int64_t>(gridDim.x) * blockDim.x)
    slots[s] = static_cast<int32_t>(s);
}

// From experts in sorted order: the inverse permutation, and the first row of each expert by bisection.
__global__ void order_kernel(const int32_t* __restrict__ sorted_experts, const int32_t* __restrict__ slot_of_row, int32_t* __restrict__ row_of_slot,
                             int32_t* __restrict__ offsets, int64_t count, int64_t num_experts) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t r = first; r < count; r += step) row_of_slot[slot_of_row[r]] = static_cast<int32_t>(r);
  for (int64_t e = first; e <= num_experts; e += step) {
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (sorted_experts[middle] < e)
        low = middle + 1;
      else
        high = middle;
    }
    offsets[e] = static_cast<int32_t>(low);
  }
}

template <typename T, int kWidth>
__global__ void gather_kernel(T* __restrict__ rows, const T* __restrict__ x, const int32_t* __restrict__ slot_of_row, int64_t count, int64_t k, int64_t columns) {
  for (int64_t r = blockIdx.x; r < count; r += gridDim.x) {
    const T* from = x + slot_of_row[r] / k * columns;
    for (int64_t c = threadIdx.x * kWidth; c < columns; c += kThreads * kWidth) {
      float v[kWidth];
      load_pack(from + c, v);
      store_pack(rows + r * columns + c, v);
    }
  }
}

// y[t] (+)= sum over slots of weight * row; weights absent: 1.
template <typename R, typename T, int kWidth>
__global__ void combine_kernel(R* __restrict__ y, const T* __restrict__ rows, const float* __restrict__ weights, const int32_t* __restrict__ row_of_slot, bool accumulate,
                               int64_t tokens, int64_t k, int64_t columns) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x)
    for (int64_t c = threadIdx.x * kWidth; c < columns; c += kThreads * kWidth) {
      float sum[kWidth] = {}, v[kWidth];
      if (accumulate) load_pack(y + t * columns + c, sum);
      for (int64_t slot = t * k; slot < (t + 1) * k; ++slot) {
        load_pack(rows + row_of_slot[slot] * columns + c, v);
        const float w = weights ? weights[slot] : 1;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum[i] += w * v[i];
      }
      store_pack(y + t * columns + c, sum);
    }
}

// drows may be the memory of rows.
template <typename T, int kWidth>
__global__ void combine_backward_kernel(const T* rows, const float* __restrict__ weights, const T* __restrict__ dy, const int32_t* __restrict__ slot_of_row, T* drows,
                                        float* __restrict__ dweights, int64_t count, int64_t k, int64_t columns) {
  for (int64_t r = blockIdx.x; r < count; r += gridDim.x) {
    const int32_t slot = slot_of_row[r];
    const T* from = dy + slot / k * columns;
    const float w = weights[slot];
    float dot = 0;
    for (int64_t c = threadIdx.x * kWidth; c < columns; c += kThreads * kWidth) {
      float d[kWidth], v[kWidth];
      load_pack(from + c, d);
      load_pack(rows + r * columns + c, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) dot += d[i] * v[i], d[i] *= w;
      store_pack(drows + r * columns + c, d);
    }
    dot = block_sum<kThreads>(dot);
    if (threadIdx.x == 0) dweights[slot] = dot;
  }
}

int64_t choices(const Tensor& x, const Tensor& rows) { return x.size(0) == 0 ? 1 : rows.size(0) / x.size(0); }

}  // namespace

void make_expert_order_cuda(const MakeExpertOrder& m) {
  const int64_t count = m.experts.elements(), num_experts = m.order.offsets.size(0) - 1;
  const cudaStream_t stream = stream_of(m.stream);
  if (count == 0) return check_cuda(cudaMemsetAsync(m.order.offsets.raw(), 0, m.order.offsets.bytes(), stream), "make_expert_order");
  Workspace workspace(m.workspace);
  int32_t *slots = workspace.take<int32_t>(count), *sorted = workspace.take<int32_t>(count);
  slots_kernel<<<grid_for(count, 256), 256, 0, stream>>>(slots, count);
  int bits = 1;
  while ((int64_t{1} << bits) < num_experts) ++bits;
  size_t bytes = 0;
  check_cuda(cub::DeviceRadixSort::SortPairs(nullptr, bytes, m.experts.i32(), sorted, slots, m.order.slot_of_row.i32(), count, 0, bits, stream), "make_expert_order sort");
  check_cuda(cub::DeviceRadixSort::SortPairs(workspace.take<char>(static_cast<int64_t>(bytes)), bytes, m.experts.i32(), sorted, slots, m.order.slot_of_row.i32(), count, 0,
                                             bits, stream),
             "make_expert_order sort");
  order_kernel<<<grid_for(count, 256), 256, 0, stream>>>(sorted, m.order.slot_of_row.i32(), m.order.row_of_slot.i32(), m.order.offsets.i32(), count, num_experts);
  check_launch("make_expert_order");
}

void gather_rows_cuda(const Tensor& rows, const Tensor& x, const ExpertOrder& order, Stream stream) {
  if (rows.elements() == 0) return;
  with_packs("gather_rows", x.size(1), [&](auto type, auto pack) {
    using T = decltype(type);
    gather_kernel<T, pack><<<grid_for(rows.size(0), 1), kThreads, 0, stream_of(stream)>>>(rows.data<T>(), x.data<T>(), order.slot_of_row.i32(), rows.size(0), choices(x, rows), x.size(1));
  }, rows, x);
}

void gather_rows_backward_cuda(const Tensor& dx, const Tensor& drows, const ExpertOrder& order, bool accumulate, Stream stream) {
  if (dx.elements() == 0) return;
  with_packs("gather_rows_backward", dx.size(1), [&](auto type, auto pack) {
    using T = decltype(type);
    combine_kernel<T, T, pack><<<grid_for(dx.size(0), 1), kThreads, 0, stream_of(stream)>>>(dx.data<T>(), drows.data<T>(), nullptr, order.row_of_slot.i32(), accumulate, dx.size(0),
                                                                                            choices(dx, drows), dx.size(1));
  }, dx, drows);
}

void combine_rows_cuda(const Tensor& y, const Tensor& rows, const Tensor& weights, const ExpertOrder& order, bool accumulate, Stream stream) {
  if (y.elements() == 0) return;
  with_residual_packs("combine_rows", y.size(1), [&](auto residual, auto type, auto pack) {
    using R = decltype(residual);
    using T = decltype(type);
    combine_kernel<R, T, pack><<<grid_for(y.size(0), 1), kThreads, 0, stream_of(stream)>>>(y.data<R>(), rows.data<T>(), weights.f32(), order.row_of_slot.i32(), accumulate, y.size(0),
                                                                                           choices(y, rows), y.size(1));
  }, y, rows);
}

void combine_rows_backward_cuda(const CombineRowsBackward& b) {
  if (b.rows.elements() == 0) return;
  with_packs("combine_rows_backward", b.dy.size(1), [&](auto type, auto pack) {
    using T = decltype(type);
    combine_backward_kernel<T, pack><<<grid_for(b.rows.size(0), 1), kThreads, 0, stream_of(b.stream)>>>(
        b.rows.data<T>(), b.weights.f32(), b.dy.data<T>(), b.order.slot_of_row.i32(), b.drows.data<T>(), b.dweights.f32(), b.rows.size(0), choices(b.dy, b.rows), b.dy.size(1));
  }, b.rows, b.dy);
}

}  // namespace hyscale
