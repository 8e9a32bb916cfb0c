// Keys by blocks: tokens ratio b .. ratio b + ratio - 1 of a document are its block b, on a grid fixed at its start; an
// incomplete last block has no key. Blocks of a packed sequence have one index space of ceil(T / ratio) rows: block b of a document
// that begins at token s is row ceil(s / ratio) + b. No two blocks share a row; some rows stay empty.
//   visible to a token at position i: the (i + 1) / ratio complete blocks of its document (rounded down)
//   pooled key of a block: the mean of its tokens' rows, f32 sum;   backward: dx[token] = dpooled[its block] / ratio
// Runs on the CPU and on meta. Source: Qwen3.8 (QSA), report section 2.1.2.
#pragma once
#include "core/tensor.h"

namespace hyscale {

inline int64_t num_key_blocks(int64_t tokens, int64_t ratio) { return (tokens + ratio - 1) / ratio; }
// Row of the first block of the document that begins at token `key_begin`.
inline int64_t first_key_block(int64_t key_begin, int64_t ratio) { return (key_begin + ratio - 1) / ratio; }

struct KeyBlocks {
  Tensor positions;  // i32 [T]: of a token in its document
  Tensor key_begin;  // i32 [T]: first token of the same document
  int64_t ratio = 1;
};

// Visible block rows begin[t] <= row < end[t] of every token, and the position of every block's first token (0 for empty rows).
struct KeyBlockBounds {
  KeyBlocks blocks;
  Tensor begin, end;       // i32 [T]
  Tensor block_positions;  // i32 [N]
  Stream stream;
};
void key_block_bounds(const KeyBlockBounds&);

struct PoolKeyBlocks {
  KeyBlocks blocks;
  Tensor x;       // [T, D]
  Tensor pooled;  // [N, D], overwritten; zeros in empty rows
  Stream stream;
};
void pool_key_blocks(const PoolKeyBlocks&);

struct PoolKeyBlocksBackward {
  KeyBlocks blocks;
  Tensor dpooled;  // [N, D]
  Tensor dx;       // [T, D], overwritten; zeros for tokens of incomplete blocks
  Stream stream;
};
void pool_key_blocks_backward(const PoolKeyBlocksBackward&);

}  // namespace hyscale
