#include "kernels/embedding/embedding.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

// Tokens repeat, some are -1; y and dy are columns of wider rows.
void expect_as_on_cpu(int64_t tokens, int64_t vocabulary, int64_t columns, int64_t from) {
  SCOPED_TRACE(concat(tokens, " tokens of ", vocabulary, ", ", columns, " columns from ", from));
  test::HostTensor ids(DType::i32, {tokens});
  const Rng rng(5);
  for (int64_t t = 0; t < tokens; ++t) ids.i32()[t] = static_cast<int32_t>(rng.below(static_cast<uint64_t>(t), static_cast<uint64_t>(vocabulary) + 1)) - 1;
  const Both at = test::as_is(ids), w = test::in_bf16(test::random({vocabulary, columns}, 1)), y = test::in_bf16(test::filled({tokens, columns + from}, 7));
  const Both stream = test::as_is(test::filled({tokens, columns + from}, 7));
  const Both dy = test::in_bf16(test::random({tokens, columns + from}, 2)), dw = test::as_is(test::random({vocabulary, columns}, 3));
  const auto backward = [&](Device d) { return EmbeddingBackward{at[d], dy[d].slice(1, from, from + columns), dw[d], {}, {}}; };
  test::on_both([&](Device d) {
    for (const Both* out : {&y, &stream}) embedding({at[d], w[d], (*out)[d].slice(1, from, from + columns), {}});
  });
  test::on_both(backward, embedding_backward_workspace_bytes, embedding_backward);
  EXPECT_SAME_AS_ON_CPU(y);
  EXPECT_SAME_AS_ON_CPU(stream);
  EXPECT_AS_ON_CPU(dw, test::kF32);
}

TEST(EmbeddingCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 6, 1000})
    for (int64_t vocabulary : {1, 31, 4097})
      for (int64_t columns : {1, 70, 256}) expect_as_on_cpu(tokens, vocabulary, columns, columns == 70 ? 3 : 0);
}

}  // namespace
}  // namespace hyscale
