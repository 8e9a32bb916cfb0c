// CUDA entries of block attention and the forms behind them. `plain` takes any shape in f32 or bf16.
#pragma once
#include "kernels/block_attention/block_attention.h"

namespace hyscale {

void block_attention_forward_cuda(const BlockAttentionForward&);
void block_attention_backward_cuda(const BlockAttentionBackward&);
size_t block_attention_backward_cuda_workspace_bytes(const BlockAttentionBackward&);

// Sums of dk and dv in 64-bit fixed point, for the deterministic mode; null sums mean f32 atomics straight into dk and dv.
struct FixedKeySums {
  long long *dk = nullptr, *dv = nullptr;                    // [N, G, D]
  const float *dk_scale = nullptr, *dv_scale = nullptr;  // first numbers of FixedUnits on the device
};

void block_attention_forward_plain(const BlockAttentionForward&);
void block_attention_backward_plain(const BlockAttentionBackward&, FixedKeySums);

}  // namespace hyscale
