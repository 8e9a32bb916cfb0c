#include "kernels/ngram_hash/ngram_hash.h"

#include <limits>

#include "kernels/common/op.h"

namespace hyscale {

void ngram_hash_cuda(const NgramHash&);

namespace {

bool is_prime(int64_t n) {
  if (n < 2) return false;
  for (int64_t d = 2; d * d <= n; ++d)
    if (n % d == 0) return false;
  return true;
}

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
uint64_t split_mix(uint64_t x) {
  x += kGolden;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

void ngram_hash_ref(const NgramHash& n) {
  const int64_t tokens = n.tokens.size(0), order = static_cast<int64_t>(n.table.multipliers.size()), heads = n.table.heads(), per_order = heads / (order - 1);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    int64_t hash = 0;
    bool inside = true;  // no end of a segment between the place and the token
    for (int64_t j = 0; j < order; ++j) {
      inside = inside && j <= n.positions.i32()[t] && (j == 0 || n.tokens.i32()[t - j] != n.eos);
      hash ^= (inside ? n.tokens.i32()[t - j] : n.eos) * n.table.multipliers[static_cast<size_t>(j)];
      for (int64_t h = (j - 1) * per_order; j > 0 && h < j * per_order; ++h) {
        const size_t at = static_cast<size_t>(h);
        n.rows.i32()[t * heads + h] = static_cast<int32_t>(hash % n.table.sizes[at] + n.table.offsets[at]);
      }
    }
  }
}

}  // namespace

NgramTable make_ngram_table(const NgramTableRule& rule, int64_t layer) {
  NgramTable table;
  const int64_t largest = std::numeric_limits<int64_t>::max() / rule.vocabulary, heads = (rule.order - 1) * rule.heads_per_order;
  for (int64_t j = 0; j < rule.order; ++j) {
    const uint64_t start = static_cast<uint64_t>(rule.seed + 10007 * layer) + kGolden * static_cast<uint64_t>(j + 1);
    table.multipliers.push_back(static_cast<int64_t>(2 * (split_mix(start) % static_cast<uint64_t>(largest / 2)) + 1));
  }
  int64_t prime = rule.size_base - 1;
  for (int64_t i = 0; i < (layer + 1) * heads; ++i) {
    do ++prime;
    while (!is_prime(prime));
    if (i < layer * heads) continue;
    table.sizes.push_back(prime);
    table.offsets.push_back(table.num_rows);
    table.num_rows += prime;
  }
  table.num_rows = (table.num_rows + rule.divisor - 1) / rule.divisor * rule.divisor;
  return table;
}

void ngram_hash(const NgramHash& n) {
  check_tensor(n.tokens, "tokens", DType::i32, {-1});
  check_tensor(n.positions, "positions", DType::i32, n.tokens.shape());
  check_tensor(n.rows, "rows", DType::i32, {n.tokens.size(0), n.table.heads()});
  HYSCALE_CHECK(n.table.num_rows <= std::numeric_limits<int32_t>::max(), n.table.num_rows, " rows of the n-gram table; at most 2^31 - 1");
  HYSCALE_DISPATCH("ngram_hash", n.tokens.device(), ngram_hash_ref(n), ngram_hash_cuda(n));
}

}  // namespace hyscale
