#include "kernels/ngram_hash/ngram_hash.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

TEST(NgramHash, SizesAreSuccessivePrimesAndRowsArePadded) {
  const NgramTable first = make_ngram_table({.vocabulary = 160, .heads_per_order = 2, .size_base = 97, .divisor = 128, .seed = 1234}, 0);
  EXPECT_EQ(first.sizes, (std::vector<int64_t>{97, 101, 103, 107}));
  EXPECT_EQ(first.offsets, (std::vector<int64_t>{0, 97, 198, 301}));
  EXPECT_EQ(first.num_rows, 512);
  const NgramTable second = make_ngram_table({.vocabulary = 160, .heads_per_order = 2, .size_base = 97, .divisor = 128, .seed = 1234}, 1);
  EXPECT_EQ(second.sizes, (std::vector<int64_t>{109, 113, 127, 131}));
  EXPECT_NE(first.multipliers, second.multipliers);
  // The released model's table.
  EXPECT_EQ(make_ngram_table({.vocabulary = 248320, .heads_per_order = 8, .size_base = 20000000, .divisor = 128, .seed = 1234}, 0).num_rows, 320001536);
}

TEST(NgramHash, EndOfSequenceAndDocumentStartHideWhatLiesBefore) {
  const NgramTable table{{3, 5, 7}, {1000, 2000}, {0, 1000}, 3000};
  const int64_t eos = 9;
  const HostTensor tokens = test::ints({7}, {4, 9, 2, 6, 8, 1, 3}), positions = test::ints({7}, {0, 1, 2, 3, 4, 0, 1});
  HostTensor rows(DType::i32, {7, 2});
  ngram_hash({table, tokens, positions, static_cast<int32_t>(eos), rows, {}});
  // The two earlier tokens of each, as the hash sees them.
  const int64_t before[7][2] = {{eos, eos}, {4, eos}, {eos, eos}, {2, eos}, {6, 2}, {eos, eos}, {1, eos}};
  for (int64_t t = 0; t < 7; ++t) {
    const int64_t pair = (tokens.i32()[t] * 3) ^ (before[t][0] * 5), triple = pair ^ (before[t][1] * 7);
    EXPECT_EQ(rows.i32()[t * 2], pair % 1000) << t;
    EXPECT_EQ(rows.i32()[t * 2 + 1], 1000 + triple % 2000) << t;
  }
}

}  // namespace
}  // namespace hyscale
