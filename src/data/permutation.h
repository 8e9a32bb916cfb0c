// A shuffled order of 0 ... n - 1 that is computed and not stored, so that it takes neither memory nor time to prepare,
// whatever n is, and cannot be stale: a function of (n, seed, stream).
//
// A Feistel network over the smallest square power of two that holds n, walked until the value is below n: a cycle-walking
// cipher (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002), with Rng as its round function.
#pragma once
#include <cstdint>

#include "core/rng.h"

namespace hyscale {

class Permutation {
 public:
  Permutation(int64_t n, uint64_t seed, uint64_t stream);  // 0 < n <= 2^62
  int64_t operator()(int64_t i) const;                     // of 0 <= i < n

 private:
  uint64_t scramble(uint64_t value) const;
  Rng rng_;
  int64_t n_;
  int half_bits_ = 1;
};

}  // namespace hyscale
