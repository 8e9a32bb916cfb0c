// CUDA entries of sparse attention, bf16 with f32 accumulation, and the two forms behind them: `plain` takes any shape;
// `hopper` takes rows of 576 or 512 with values of 512 and at most 64 heads (GLM, DeepSeek-V4) at tensor-core speed.
#pragma once
#include "kernels/common/op.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace hyscale {

void sparse_attention_forward_cuda(const SparseAttentionForward&);
size_t sparse_attention_forward_cuda_workspace_bytes(const SparseAttentionForward&);
void sparse_attention_backward_cuda(const SparseAttentionBackward&);
size_t sparse_attention_backward_cuda_workspace_bytes(const SparseAttentionBackward&);

inline bool sparse_attention_fits_hopper(const Tensor& q, const Tensor& kv, const Tensor& out) {
  return (q.size(2) == 576 || q.size(2) == 512) && out.size(2) == 512 && q.size(1) <= 64 && kv.stride(0) % 8 == 0;
}

// Sums of dkv in 64-bit fixed point, for the deterministic mode of the plain form; null sums mean f32 atomics straight into dkv.
struct FixedRowSums {
  long long* sums = nullptr;    // [N, Dk]
  const float* scale = nullptr;  // first number of a FixedUnit on the device
};

void sparse_attention_forward_plain(const SparseAttentionForward&);
void sparse_attention_forward_hopper(const SparseAttentionForward&);
void sparse_attention_backward_plain(const SparseAttentionBackward&, FixedRowSums);
void sparse_attention_backward_hopper(const SparseAttentionBackward&, const Workspace&);
size_t sparse_attention_backward_hopper_workspace_bytes(const SparseAttentionBackward&);

void check_attention_launch(const char* kernel);

}  // namespace hyscale
