#include "kernels/lm_head_loss/cross_entropy.h"
#include "kernels/lm_head_loss/lm_head_loss.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;
using test::HostTensor;

HostTensor some_labels(int64_t tokens, int64_t vocabulary) {
  HostTensor labels(DType::i32, {tokens});
  for (int64_t t = 0; t < tokens; ++t) labels.i32()[t] = t % 4 == 3 ? -1 : static_cast<int32_t>(t * 7919 % vocabulary);
  return labels;
}

TEST(CrossEntropyCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t rows : {0, 1, 5, 66})
    for (int64_t vocabulary : {1, 33, 513, 5000})
      for (DType type : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(concat(rows, " rows, vocabulary ", vocabulary, ", gradient ", dtype_name(type)));
        const Both logits = test::as_is(test::random({rows, vocabulary}, 1, 4)), labels = test::as_is(some_labels(rows, vocabulary));
        const Both dlogits(HostTensor({rows, vocabulary}), type), losses = test::as_is(HostTensor(DType::f64, {rows})), sum = test::as_is(test::zeros(DType::f64, {1}));
        test::on_both([&](Device d) {
          cross_entropy({.logits = logits[d], .labels = labels[d], .grad_scale = 30, .dlogits = dlogits[d], .loss_rows = losses[d], .loss_sum = sum[d], .stream = {}});
        });
        EXPECT_AS_ON_CPU(dlogits, type == DType::bf16 ? test::kBf16 : test::kF32);
        const HostTensor total = sum.download();
        EXPECT_NEAR(total.f64()[0], sum.host().f64()[0], 1e-5 * (1 + sum.host().f64()[0]));
        const HostTensor each = losses.download();
        for (int64_t t = 0; t < rows; ++t) EXPECT_NEAR(each.f64()[t], losses.host().f64()[t], 1e-5 * (1 + losses.host().f64()[t])) << t;
      }
}

void expect_as_on_cpu(int64_t tokens, int64_t vocabulary, int64_t columns, bool with_gradients) {
  SCOPED_TRACE(concat(tokens, " tokens, ", vocabulary, " x ", columns, with_gradients ? "" : ", loss only"));
  const Both h = test::in_bf16(test::random({tokens, columns}, 1)), w = test::in_bf16(test::random({vocabulary, columns}, 2, 0.3f));
  const Both labels = test::as_is(some_labels(tokens, vocabulary)), loss = test::as_is(test::zeros(DType::f64, {1}));
  const Both dh = test::in_bf16(test::filled({tokens, columns}, 1)), dw = test::as_is(test::filled({vocabulary, columns}, 1));
  const auto op = [&](Device d) { return LmHeadLoss{h[d], w[d], labels[d], 2, loss[d], with_gradients ? dh[d] : Tensor(), with_gradients ? dw[d] : Tensor(), {}, {}}; };
  test::on_both(op, lm_head_loss_workspace_bytes, lm_head_loss);
  const HostTensor total = loss.download();
  EXPECT_NEAR(total.f64()[0], loss.host().f64()[0], 1e-5 * (1 + loss.host().f64()[0]));
  EXPECT_AS_ON_CPU(dh, 2 * test::kBf16);  // the logits' gradient is rounded to bf16 before the product
  EXPECT_AS_ON_CPU(dw, test::kBf16);
}

TEST(LmHeadLossCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 7, 200})
    for (int64_t vocabulary : {8, 160, 2056}) expect_as_on_cpu(tokens, vocabulary, 64, vocabulary != 160);
}

TEST(LmHeadLossCuda, MoreTokensThanAChunk) {
  SKIP_WITHOUT_CUDA();
  expect_as_on_cpu(8200, 16, 8, true);
}

}  // namespace
}  // namespace hyscale
