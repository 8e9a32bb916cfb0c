// Inputs of FlashTopK's benchmark, of many kinds, and the check of what it selects.
#pragma once
#include "bench/bench.h"
#include "kernels/flash_topk/flash_topk.h"

namespace hyscale::bench {

struct TopKShape {
  enum class Kind {
    normal,     // independent normal numbers
    rising,     // every later key scores higher
    falling,    // every later key scores lower
    equal,      // all keys alike
    zeros,      // most scores are 0: fewer keys than k score more
    outlier,    // equal but for one key, whose score is 2^20 times as high
    clustered,  // 64 neighbouring keys score much alike
    documents,  // normal; queries see the keys of their own document only, many of them fewer than k
  };
  const char* name;
  int64_t queries, keys, heads, k;
  bool weighted;
  Kind kind = Kind::normal;
  bool e4m3 = false;  // inputs hold what e4m3 with scales can say, and each call quantises them
  int64_t ratio = 1;  // tokens per key: above 1 every token of the sequence is a query and sees the keys behind it
};

// Queries are the last of the keys, and causal; more queries than keys see all of them.
struct TopKCase {
  static constexpr int64_t kDims = 128;
  Memory memory;
  TopKShape shape;
  Tensor q, keys, weights, begin, end;           // bf16, bf16, f32, i32, i32
  Tensor q8, keys8, q_scales, key_scales;        // with e4m3
  explicit TopKCase(const TopKShape&);

  double pairs = 0;  // of a query and a key that it sees
  double tflop() const { return 2e-12 * pairs * static_cast<double>(shape.heads * kDims); }
  void quantize() const;  // with e4m3: q and keys into q8 and keys8
  FlashTopKUpdate update() const;  // of all keys; without workspace
  FlashTopKState state(Memory&, int64_t queries, int64_t k) const;

  // Sampled queries against f64: no key outside `band` of the k-th score is in or out. "WRONG: ..." or empty.
  std::string check_against_f64(const Tensor& indices, double band) const;
  // Sampled queries against a sort of all scores as FlashTopK itself computes them, ties by index: the very same keys.
  std::string check_against_own_scores(const Tensor& indices) const;
};

}  // namespace hyscale::bench
