#include "data/permutation.h"

#include "core/error.h"

namespace hyscale {

constexpr uint64_t kRounds = 6;

Permutation::Permutation(int64_t n, uint64_t seed, uint64_t stream) : rng_(seed, stream), n_(n) {
  HYSCALE_CHECK(n > 0 && n <= int64_t{1} << 62, n, " values");
  while (int64_t{1} << (2 * half_bits_) < n) ++half_bits_;
}

uint64_t Permutation::scramble(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = left ^ (rng_.bits(round << 32 | right) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

// Fewer than four of the network's values per one below n, so the walk is short.
int64_t Permutation::operator()(int64_t i) const {
  uint64_t value = static_cast<uint64_t>(i);
  do value = scramble(value);
  while (value >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(value);
}

}  // namespace hyscale
