// The backward sorts (token, place) pairs, so that one block owns a token's row and adds its gradients in the order of places.
#include <cub/device/device_radix_sort.cuh>

#include "kernels/common/op.h"
#include "kernels/common/residual_types.cuh"
#include "kernels/embedding/embedding.h"

namespace hyscale {
namespace {

template <typename R, typename T>
__global__ void embedding_kernel(const int32_t* __restrict__ tokens, const T* __restrict__ weight, R* __restrict__ y, int64_t y_step, int64_t count, int64_t columns) {
  for (int64_t t = blockIdx.x; t < count; t += gridDim.x) {
    const int64_t id = tokens[t];
    for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) y[t * y_step + c] = id < 0 ? from_f32<R>(0) : from_f32<R>(to_f32(weight[id * columns + c]));
  }
}

__global__ void places_kernel(int32_t* places, int64_t count) {
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; t < count; t += static_cast<int64_t>(gridDim.x) * blockDim.x)
    places[t] = static_cast<int32_t>(t);
}

template <typename T>
__global__ void add_rows_kernel(const int32_t* __restrict__ sorted_tokens, const int32_t* __restrict__ places, const T* __restrict__ dy, int64_t dy_step,
                                float* __restrict__ dweight, int64_t count, int64_t columns) {
  const int64_t c = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const int32_t id = sorted_tokens[i];
    if (id < 0 || (i > 0 && sorted_tokens[i - 1] == id) || c >= columns) continue;
    float sum = dweight[id * columns + c];
    for (int64_t j = i; j < count && sorted_tokens[j] == id; ++j) sum += to_f32(dy[places[j] * dy_step + c]);
    dweight[id * columns + c] = sum;
  }
}

}  // namespace

void embedding_cuda(const Embedding& e) {
  const int64_t count = e.tokens.size(0), columns = e.weight.size(1);
  if (count == 0) return;
  with_residual_types(e.y.dtype(), e.weight.dtype(), "embedding", [&](auto residual, auto type) {
    using R = decltype(residual);
    using T = decltype(type);
    embedding_kernel<R, T><<<grid_for(count, 1), 256, 0, stream_of(e.stream)>>>(e.tokens.i32(), e.weight.data<T>(), e.y.data<R>(), e.y.stride(0), count, columns);
  });
  check_launch("embedding");
}

void embedding_backward_cuda(const EmbeddingBackward& e) {
  const int64_t count = e.tokens.size(0), columns = e.dweight.size(1);
  if (count == 0) return;
  const cudaStream_t stream = stream_of(e.stream);
  Workspace workspace(e.workspace);
  int32_t *places = workspace.take<int32_t>(count), *sorted_places = workspace.take<int32_t>(count), *sorted = workspace.take<int32_t>(count);
  places_kernel<<<grid_for(count, 256), 256, 0, stream>>>(places, count);
  size_t bytes = 0;
  check_cuda(cub::DeviceRadixSort::SortPairs(nullptr, bytes, e.tokens.i32(), sorted, places, sorted_places, count, 0, 32, stream), "embedding_backward sort");
  check_cuda(cub::DeviceRadixSort::SortPairs(workspace.take<char>(static_cast<int64_t>(bytes)), bytes, e.tokens.i32(), sorted, places, sorted_places, count, 0, 32, stream),
             "embedding_backward sort");
  with_float_type(e.dy.dtype(), "embedding_backward", [&](auto type) {
    using T = decltype(type);
    const dim3 grid(grid_for(count, 1), grid_for(columns, 256));
    add_rows_kernel<T><<<grid, 256, 0, stream>>>(sorted, sorted_places, e.dy.data<T>(), e.dy.stride(0), e.dweight.f32(), count, columns);
  });
  check_launch("embedding_backward");
}

}  // namespace hyscale
