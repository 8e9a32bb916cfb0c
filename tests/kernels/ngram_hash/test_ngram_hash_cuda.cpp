#include "kernels/ngram_hash/ngram_hash.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

// Many end-of-sequence tokens, at document starts and inside, and products of more than 32 bits.
TEST(NgramHashCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  const NgramTable table = make_ngram_table({.vocabulary = 50, .order = 3, .heads_per_order = 8, .size_base = 20000003, .divisor = 128, .seed = 1234}, 1);
  for (int32_t tokens : {0, 1, 2, 700}) {
    std::vector<int32_t> ids, positions;
    const Rng rng(7);
    for (int32_t t = 0; t < tokens; ++t) ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(t), 50)) % 5 == 0 ? 49 : t % 49), positions.push_back(t % 37);
    const Both id = test::as_is(test::ints({tokens}, ids)), at = test::as_is(test::ints({tokens}, positions)), rows = test::as_is(test::HostTensor(DType::i32, {tokens, 16}));
    test::on_both([&](Device d) { ngram_hash({table, id[d], at[d], 49, rows[d], {}}); });
    EXPECT_SAME_AS_ON_CPU(rows);
  }
}

}  // namespace
}  // namespace hyscale
