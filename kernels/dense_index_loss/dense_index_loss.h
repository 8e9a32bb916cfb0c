// Index loss of the warm-up stage: as index_loss.h, but teacher and student range over every key that a query sees.
//   P[t, h, s] = exp(scale * q[t, h] . k[s, g] - lse[t, h]),  g = h / (H / G)
//   mass[t, e] = max over the keys s of block e of sum_h P[t, h, s];  without blocks each key is one
//   p[t, .] = mass[t, .] / sum(mass[t, .]),    r[t, .] = softmax over visible e of score(t, e)
//   loss_sum += sum_t KL(p || r),   dscore = grad_scale * (r - p)
// Blocks of queries against all keys: memory O(T), no table. A query that sees no block adds 0.
// Source: DeepSeek-V3.2 section 2.1.1; Qwen3.8 (QSA), report equation 20, for the blocks.
#pragma once
#include "core/tensor.h"

namespace hyscale {

// What the indexer scores, if not single keys.
struct ScoredBlocks {
  int64_t ratio = 1;   // keys of a block
  Tensor first_token;  // i32 [E]: its first one, a row of k; or absent
  Tensor begin, end;   // i32 [T]: blocks that each query sees, all of their keys among those it sees
};

struct DenseIndexLoss {
  Tensor q;                  // [T, H, D]    main attention
  Tensor k;                  // [N, G, D], H a multiple of G
  Tensor lse;                // f32 [T, H] from dense_attention
  float scale = 1;           // of main attention
  Tensor index_q;            // [T, J, Di]
  Tensor index_weights;      // f32 [T, J], or absent: all ones
  Tensor index_keys;         // [E, Di], E = N without blocks
  Tensor begin, end;         // i32 [T]: visible keys of each query
  ScoredBlocks blocks;
  float grad_scale = 1;
  Tensor loss_sum;           // f64 [1]      accumulated into
  Tensor dindex_q;           // [T, J, Di]   overwritten
  Tensor dindex_weights;     // f32 [T, J]   overwritten; absent with index_weights
  Tensor dindex_keys;        // f32 [E, Di]  accumulated into
  Tensor workspace;
  Stream stream;
  bool in_blocks() const { return blocks.first_token.defined(); }
  const Tensor& scored_begin() const { return in_blocks() ? blocks.begin : begin; }
  const Tensor& scored_end() const { return in_blocks() ? blocks.end : end; }
};
void dense_index_loss(const DenseIndexLoss&);
size_t dense_index_loss_workspace_bytes(const DenseIndexLoss&);

}  // namespace hyscale
