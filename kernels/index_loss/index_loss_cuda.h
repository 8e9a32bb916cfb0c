// CUDA entries of the index loss, and its forms for 128 dimensions: 32 or 64 heads at tensor-core speed, up to 8 at the speed of memory.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/common/op.h"
#include "kernels/common/row_sums.cuh"
#include "kernels/index_loss/index_loss.h"

namespace hyscale {

template <typename T>
struct IndexLossArgumentsOf {
  const T *q, *keys;
  const float *weights, *head_sum;
  const int32_t *indices, *counts;
  T* dq;
  float *dweights, *dkeys;
  double* losses;  // [T]
  long long* sums;  // fixed-point dkeys [N, D], or null
  const FixedUnit* unit;
  int64_t keys_stride, dkeys_stride;
  int heads, dims, k;
  float grad_scale;
};
using IndexLossArguments = IndexLossArgumentsOf<__nv_bfloat16>;

void index_loss_cuda(const IndexLoss&);
size_t index_loss_cuda_workspace_bytes(const IndexLoss&);

inline bool index_loss_rows_fit(const IndexLoss& l) { return l.q.dtype() == DType::bf16 && l.q.size(2) == 128 && l.keys.stride(0) % 8 == 0 && l.dkeys.stride(0) % 4 == 0; }
inline bool index_loss_fits_hopper(const IndexLoss& l) { return (l.q.size(1) == 32 || l.q.size(1) == 64) && index_loss_rows_fit(l); }
inline bool index_loss_fits_few_heads(const IndexLoss& l) { return l.q.size(1) <= 8 && index_loss_rows_fit(l); }
void index_loss_hopper(const IndexLossArguments&, int64_t queries, cudaStream_t);
void index_loss_two_halves(const IndexLossArguments&, int64_t queries, int64_t rows, const Workspace&, cudaStream_t);  // deterministic
size_t index_loss_two_halves_workspace_bytes(const IndexLoss&);
void index_loss_few_heads(const IndexLossArguments&, int64_t queries, cudaStream_t);

}  // namespace hyscale
