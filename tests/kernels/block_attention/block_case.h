// Documents with their queries, keys and a selection of blocks, for tests of block attention.
#pragma once
#include <algorithm>
#include <numeric>

#include "kernels/block_attention/block_attention.h"
#include "tests/support/tensors.h"

namespace hyscale::test {

// Documents of given lengths; every query selects up to k of its visible blocks, by a fixed rule. Queries are the tokens from
// first_row on, keys are of all tokens.
struct BlockCase {
  int64_t ratio = 4, k, first_row, heads, groups, dims, tokens = 0;
  std::vector<int32_t> positions, first_token, indices, counts;
  HostTensor q, keys, values, dout;
  BlockCase(const std::vector<int32_t>& lengths, int64_t selected, int64_t first = 0, int64_t num_heads = 4, int64_t num_groups = 2, int64_t head_dim = 3)
      : k(selected), first_row(first), heads(num_heads), groups(num_groups), dims(head_dim) {
    for (int32_t n : lengths) {
      const int32_t first_block = static_cast<int32_t>(first_token.size());
      for (int32_t i = 0; i < n; ++i)
        if (tokens + i >= first_row) add_query(i, first_block);
      for (int32_t b = 0; b < n / 4; ++b) first_token.push_back(static_cast<int32_t>(tokens) + 4 * b);
      tokens += n;
    }
    q = random({queries(), heads, dims}, 1), keys = random({tokens, groups, dims}, 2), values = random({tokens, groups, dims}, 3);
    dout = random({queries(), heads, dims}, 4);
  }
  int64_t queries() const { return static_cast<int64_t>(positions.size()); }
  std::vector<int64_t> attended(int64_t t) const {
    std::vector<int64_t> s;
    for (int64_t j = 0; j < counts[static_cast<size_t>(t)]; ++j)
      for (int64_t i = 0; i < ratio; ++i) s.push_back(first_token[static_cast<size_t>(indices[static_cast<size_t>(t * k + j)])] + i);
    for (int64_t i = first_row + t - (positions[static_cast<size_t>(t)] + 1) % ratio + 1; i <= first_row + t; ++i) s.push_back(i);
    return s;
  }

 private:
  // The last blocks, or every other one where there are enough.
  void add_query(int32_t position, int32_t first_block) {
    positions.push_back(position);
    const int32_t visible = (position + 1) / 4, count = std::min<int32_t>(visible, static_cast<int32_t>(k));
    counts.push_back(count);
    for (int32_t j = 0; j < static_cast<int32_t>(k); ++j) indices.push_back(j >= count ? -1 : first_block + (visible >= 2 * count ? 2 * j : visible - count + j));
  }
};

}  // namespace hyscale::test
