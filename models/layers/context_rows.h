// What attention reads of every token of a sequence, when the sequence is spread over ranks: KV rows and index keys travel
// around the ring together; gradients of such rows go back to the tokens' owners. Without a ring nothing moves.
#pragma once
#include <functional>

#include "models/context.h"

namespace hyscale {

struct ContextRows {
  Tensor kv;    // [S, Dk], or absent
  Tensor keys;  // [S, D] index keys, or absent
};

// kv [T, Dk] and keys [T, D] (one may be absent): the own tokens'. The result is in the saved arena, or is kv and keys themselves.
// score(first, keys): called for runs of tokens [first, first + n), each token in one of them, while the next rows arrive.
using ScoreKeys = std::function<void(int64_t first, const Tensor& keys)>;
// Rows of tokens, or of `shards`: then [S] stands for all of their rows.
ContextRows gather_context_rows(Context&, const Tensor& kv, const Tensor& keys, const ScoreKeys& score = {}, const RowShards* shards = nullptr);

// f32 [S, C], a contribution of this rank to every token's row, to the sum over ranks of the own tokens' rows, [T, C]:
// in the scratch arena, or all_rows itself.
Tensor reduce_context_rows(Context&, const Tensor& all_rows, const RowShards* shards = nullptr);

}  // namespace hyscale
