#include "core/rng.h"

#include <cmath>

namespace hyscale {

static uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

Rng::Rng(uint64_t seed, uint64_t stream) : key_(mix(seed + 0x9E3779B97F4A7C15ull) ^ mix(stream * 0xD1B54A32D192ED03ull + 1)) {}

uint64_t Rng::bits(uint64_t counter) const { return mix(key_ + (counter + 1) * 0x9E3779B97F4A7C15ull); }

double Rng::uniform(uint64_t counter) const { return static_cast<double>(bits(counter) >> 11) * 0x1.0p-53; }

float Rng::normal(uint64_t counter) const {
  const uint64_t b = bits(counter);
  const double u = (static_cast<double>(b >> 32) + 1.0) * 0x1.0p-32;  // (0, 1]
  const double v = static_cast<double>(b & 0xffffffffu) * 0x1.0p-32;
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
}

uint64_t Rng::below(uint64_t counter, uint64_t n) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits(counter)) * n) >> 64);
}

}  // namespace hyscale
