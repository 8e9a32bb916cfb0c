// Rows of [T, H, D] whose last dimension is dense, counted token by token.
#pragma once
#include "kernels/common/cuda.cuh"

namespace hyscale {

template <typename T>
struct HeadRows {
  T* data;
  int64_t token_step, head_step;
  explicit HeadRows(const Tensor& x) : data(x.data<T>()), token_step(x.stride(0)), head_step(x.stride(1)) {}
  __device__ T* operator()(int64_t token, int64_t head) const { return data + token * token_step + head * head_step; }
  __device__ T* row(int64_t r, int64_t heads) const { return (*this)(r / heads, r % heads); }
};

}  // namespace hyscale
