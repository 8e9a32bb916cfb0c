// CUDA entries of block attention and the forms behind them: `plain` takes any shape in f32 or bf16; `hopper` takes bf16 with heads of
// 256 numbers and at most 16 of them per group at tensor-core speed, query by query; `united` takes 4, 8, 12 (Qwen3.8) or 16 of these,
// with blocks of 4 tokens, and gathers what neighbouring queries share once. Its backward leaves dk and dv to `keys` where they share little.
#pragma once
#include "kernels/block_attention/block_attention.h"

namespace hyscale {

void block_attention_forward_cuda(const BlockAttentionForward&);
size_t block_attention_forward_cuda_workspace_bytes(const BlockAttentionForward&);
void block_attention_backward_cuda(const BlockAttentionBackward&);
size_t block_attention_backward_cuda_workspace_bytes(const BlockAttentionBackward&);

template <typename Op>
bool block_attention_fits_hopper(const Op& a) {
  return a.q.dtype() == DType::bf16 && a.q.size(2) == 256 && a.q.size(1) / a.k.size(1) <= 16 && a.k.size(1) <= 8 &&
         a.blocks.selection.indices.size(1) * a.blocks.ratio <= 16384;  // a number per token in shared memory
}

template <typename Op>
bool block_attention_fits_united(const Op& a) {
  return block_attention_fits_hopper(a) && a.q.size(1) / a.k.size(1) % 4 == 0 && a.blocks.ratio == 4 && a.blocks.first_token.size(0) < int64_t{1} << 29 &&
         a.blocks.selection.indices.size(1) * (64 / std::max<int64_t>(8, a.q.size(1) / a.k.size(1))) <= 2560;  // numbers of all their tokens in shared memory
}

// Sums of dk and dv in 64-bit fixed point, for the deterministic mode; null sums mean f32 atomics straight into dk and dv.
struct FixedKeySums {
  long long *dk = nullptr, *dv = nullptr;                    // [N, G, D]
  const float *dk_scale = nullptr, *dv_scale = nullptr;  // first numbers of FixedUnits on the device
};

void block_attention_forward_plain(const BlockAttentionForward&);
void block_attention_forward_hopper(const BlockAttentionForward&);
void block_attention_forward_united(const BlockAttentionForward&);
void block_attention_backward_united(const BlockAttentionBackward&);
struct KeyReaders;
void block_attention_backward_keys(const BlockAttentionBackward&, int64_t first, const KeyReaders&);  // of the readers' queries, from `first` on
void block_attention_backward_hopper(const BlockAttentionBackward&);
void block_attention_backward_plain(const BlockAttentionBackward&, FixedKeySums);

}  // namespace hyscale
