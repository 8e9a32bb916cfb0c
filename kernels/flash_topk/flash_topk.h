// FlashTopK: the exact k best keys of every query, found while scoring; no score table exists.
//
//   score(t, s) = sum_h w[t, h] * max(q[t, h] . k[s], 0)        (without w: every weight is 1)
//   over keys s with begin[t] <= s < end[t]
// f8e4m3 comes with a positive scale per row, as quantize_rows leaves it:
//   score(t, s) = key_scales[s] * sum_h w[t, h] * q_scales[t, h] * max(q[t, h] . k[s], 0)
// Membership is decided by: higher score first, then lower key index. -0.0 equals 0.0. The result has
// min(k, visible) indices, ascending. Source: DeepSeek-V3.2 (lightning indexer), GLM-5 section 2.1;
// for f8e4m3 DeepSeek-V3.2-Exp, inference/kernel.py (fp8_index).
//
// Streaming: begin(state); update(keys of one range) any number of times, ranges disjoint, in any order; finish.
// The result does not depend on how the keys were cut or ordered. Memory O(T * k), independent of the number of keys.
// Score bits depend on (q row, w row, key row) alone, never on tiles, cuts or position: dimensions are summed in order,
// then heads in one fixed order per device.
//
// A NaN score is an error: `state.nan_query` gets the lowest query index that met one; check it with
// flash_topk_nan_query after the step (the only call here that synchronises).
#pragma once
#include "core/tensor.h"
#include "kernels/flash_topk/selection.h"

namespace hyscale {

struct FlashTopKState {
  int64_t k = 0;
  Tensor scores;     // f32 [T, k]  kept candidates, unordered
  Tensor indices;    // i32 [T, k]
  Tensor counts;     // i32 [T]
  Tensor nan_query;  // i32 [1]     T (none) or the lowest query with a NaN score
};

struct FlashTopKUpdate {
  Tensor q;        // [T, H, D]  f32 (CPU), bf16 (CUDA) or f8e4m3
  Tensor weights;  // f32 [T, H], or absent: all ones
  Tensor keys;     // [n, D], same dtype as q; rows may be strided (CUDA: by multiples of 8)
  int64_t first_key = 0;  // index of keys[0] in key index space
  Tensor begin;    // i32 [T]: first visible key index of each query
  Tensor end;      // i32 [T]: one past the last visible key index
  Tensor workspace;
  Stream stream;
  Tensor q_scales;    // f32 [T, H], with f8e4m3
  Tensor key_scales;  // f32 [n], with f8e4m3
};

// CUDA: k in [1, 4096]; tensor cores for bf16 of 32 and 64 heads, and 4 without weights, of 64 or 128 dimensions, and for f8e4m3 of
// 32 and 64 heads of 128; other shapes take a plain form. The tensor cores' sums of e4m3 products keep fewer bits than f32
// (about 14 of the largest term), on this device always the same ones. The CPU has no limits. T == 0 and n == 0 are allowed.
void flash_topk_begin(FlashTopKState&, Stream);
void flash_topk_update(FlashTopKState&, const FlashTopKUpdate&);
size_t flash_topk_update_workspace_bytes(const FlashTopKState&, const FlashTopKUpdate&);  // f8e4m3 on meta: as CUDA takes it
void flash_topk_finish(const FlashTopKState&, const Selection& out, Stream);

// Query index of a NaN score, or -1. Synchronises the stream.
int64_t flash_topk_nan_query(const FlashTopKState&, Stream);

}  // namespace hyscale
