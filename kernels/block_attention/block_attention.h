// Sparse attention over selected blocks of keys, grouped-query form: query head h reads key head h / (H / G).
//   keys of token t: the tokens of its selected blocks, and the tail, the tokens of its document after its last complete block up to
//   itself (at most ratio - 1, never scored).  P = softmax over them of scale q[t, h] . k[s, g]
//   out[t, h] = sum_s P[h, s] v[s, g]                  lse[t, h] = log sum_s exp(scale q . k)
// A block is `ratio` neighbouring tokens from first_token[e] on. A token without keys has out 0, lse -inf and zero gradients.
//   block_mass[t, j] = max over the tokens s of the j-th selected block of sum over all heads of P[h, s]: the index loss's teacher
// k and v may hold more rows than there are queries, as on a rank that holds a part of the sequence: first_row says where the queries lie.
// CUDA takes f32 or bf16 with f32 sums. Source: Qwen3.8 (QSA), report equations 12 to 16 and 20.
#pragma once
#include "core/tensor.h"
#include "kernels/flash_topk/selection.h"

namespace hyscale {

struct AttendedBlocks {
  int64_t ratio = 1;
  Tensor first_token;   // i32 [E]
  Tensor positions;     // i32 [T]: of a token in its document
  Selection selection;  // of blocks
  int64_t first_row = 0;  // row of k and v that is the first query's token
};

struct BlockAttentionForward {
  Tensor q;             // [T, H, D]
  Tensor k, v;          // [N, G, D], N >= first_row + T; H is a multiple of G
  AttendedBlocks blocks;
  float scale = 1;
  Tensor out;           // [T, H, D]
  Tensor lse;           // f32 [T, H]
  Tensor workspace;
  Stream stream;
};
void block_attention_forward(const BlockAttentionForward&);
size_t block_attention_forward_workspace_bytes(const BlockAttentionForward&);

struct BlockAttentionBackward {
  Tensor q, k, v;
  AttendedBlocks blocks;
  float scale = 1;
  Tensor out, lse;    // forward's results
  Tensor dout;        // [T, H, D]
  Tensor dq;          // [T, H, D], overwritten
  Tensor dk, dv;      // f32 [N, G, D], accumulated into
  Tensor block_mass;  // f32 [T, k], overwritten (0 beyond count); or absent
  Tensor workspace;
  Stream stream;
  bool deterministic = false;  // bit-equal dk and dv across runs (the CPU always is)
};
void block_attention_backward(const BlockAttentionBackward&);
size_t block_attention_backward_workspace_bytes(const BlockAttentionBackward&);

}  // namespace hyscale
