// Random numbers as a pure function of (seed, stream, counter), so that a value does not depend on which rank, thread or
// order draws it. SplitMix64 finaliser over a Weyl sequence; normals by Box-Muller.
#pragma once
#include <cstdint>

namespace hyscale {

class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0);
  uint64_t bits(uint64_t counter) const;
  double uniform(uint64_t counter) const;  // in [0, 1)
  float normal(uint64_t counter) const;    // mean 0, variance 1
  uint64_t below(uint64_t counter, uint64_t n) const;  // in [0, n), n > 0

 private:
  uint64_t key_;
};

}  // namespace hyscale
