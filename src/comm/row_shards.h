// RowShards: which rank owns which of the rows that ranks share out: tokens of a sequence, or what is made of them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace hyscale {

// Rows [begin, end), of tokens where it says so.
struct TokenRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const TokenRange&) const = default;
};

struct RowShards {
  std::vector<std::vector<TokenRange>> of_rank;  // ascending runs; together they cover every row once
  int64_t local(int rank) const {
    int64_t n = 0;
    for (const TokenRange& r : of_rank[static_cast<size_t>(rank)]) n += r.size();
    return n;
  }
  int64_t most() const {
    int64_t n = 0;
    for (size_t r = 0; r < of_rank.size(); ++r) n = std::max(n, local(static_cast<int>(r)));
    return n;
  }
  int64_t total() const {
    int64_t n = 0;
    for (size_t r = 0; r < of_rank.size(); ++r) n += local(static_cast<int>(r));
    return n;
  }
};

}  // namespace hyscale
