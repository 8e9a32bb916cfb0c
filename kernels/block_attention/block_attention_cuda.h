// CUDA entries of block attention and the forms behind them: `plain` takes any shape in f32 or bf16; `hopper` takes bf16 with heads of
// 256 numbers and at most 16 of them per group (Qwen3.8's 12) at tensor-core speed.
#pragma once
#include "kernels/block_attention/block_attention.h"

namespace hyscale {

void block_attention_forward_cuda(const BlockAttentionForward&);
void block_attention_backward_cuda(const BlockAttentionBackward&);
size_t block_attention_backward_cuda_workspace_bytes(const BlockAttentionBackward&);

template <typename Op>
bool block_attention_fits_hopper(const Op& a) {
  return a.q.dtype() == DType::bf16 && a.q.size(2) == 256 && a.q.size(1) / a.k.size(1) <= 16 && a.k.size(1) <= 8 &&
         a.blocks.selection.indices.size(1) * a.blocks.ratio <= 16384;  // a number per token in shared memory
}

// Sums of dk and dv in 64-bit fixed point, for the deterministic mode; null sums mean f32 atomics straight into dk and dv.
struct FixedKeySums {
  long long *dk = nullptr, *dv = nullptr;                    // [N, G, D]
  const float *dk_scale = nullptr, *dv_scale = nullptr;  // first numbers of FixedUnits on the device
};

void block_attention_forward_plain(const BlockAttentionForward&);
void block_attention_forward_hopper(const BlockAttentionForward&);
void block_attention_backward_hopper(const BlockAttentionBackward&);
void block_attention_backward_plain(const BlockAttentionBackward&, FixedKeySums);

}  // namespace hyscale
