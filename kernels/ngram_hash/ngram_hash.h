// Rows of a hashed n-gram table for every token. Head h of the H / (N - 1) heads of order n = 2 .. N reads
//   row = (id_0 mu_0 xor id_1 mu_1 xor .. id_{n-1} mu_{n-1}) mod size_h + offset_h       (64-bit)
// with id_j the token j places back. Where a place lies before the document, or an end-of-sequence token lies between it and the
// current token, it counts as end-of-sequence: its id is `eos`.
// Source: Qwen3.8, n-gram embedding.
#pragma once
#include <vector>

#include "core/tensor.h"

namespace hyscale {

struct NgramTable {
  std::vector<int64_t> multipliers;     // [N]: mu
  std::vector<int64_t> sizes, offsets;  // [H]
  int64_t num_rows = 0;
  int64_t heads() const { return static_cast<int64_t>(sizes.size()); }
};

struct NgramTableRule {
  int64_t vocabulary = 0, order = 3, heads_per_order = 1, size_base = 0, divisor = 1, seed = 0;
};
// Sizes are successive primes from size_base on; multipliers are odd numbers from SplitMix64 of seed and layer number, small enough for
// products with token ids; rows are padded to a multiple of divisor. `layer` counts the n-gram layers of a model from 0.
NgramTable make_ngram_table(const NgramTableRule&, int64_t layer);

struct NgramHash {
  const NgramTable& table;
  Tensor tokens;     // i32 [T]
  Tensor positions;  // i32 [T]: of a token in its document
  int32_t eos = 0;
  Tensor rows;       // i32 [T, H]
  Stream stream;
};
void ngram_hash(const NgramHash&);

}  // namespace hyscale
