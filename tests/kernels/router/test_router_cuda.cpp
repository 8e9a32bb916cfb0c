#include "kernels/router/router.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;
using test::HostTensor;

void expect_as_on_cpu(const RouterRule& rule, int64_t tokens, int64_t experts) {
  SCOPED_TRACE(concat(tokens, " tokens, k ", rule.k, " of ", experts, ", ", rule.kept_groups, " of ", rule.num_groups, " groups"));
  const Both logits = test::as_is(test::random({tokens, experts}, 1)), bias = test::as_is(test::random({experts}, 2, 0.1f)), dweights = test::as_is(test::random({tokens, rule.k}, 3));
  const Both chosen = test::as_is(HostTensor(DType::i32, {tokens, rule.k})), weights = test::f32_out({tokens, rule.k}), again = test::f32_out({tokens, rule.k});
  const Both counts = test::as_is(test::zeros(DType::i64, {experts})), dlogits = test::f32_out({tokens, experts});
  test::on_both([&](Device d) {
    router({rule, logits[d], bias[d], chosen[d], weights[d], counts[d], {}});
    router({rule, logits[d], bias[d], chosen[d], again[d], {}, {}, true});
    router_backward({rule, logits[d], chosen[d], dweights[d], dlogits[d], {}});
  });
  EXPECT_SAME_AS_ON_CPU(chosen);
  EXPECT_SAME_AS_ON_CPU(counts);
  EXPECT_AS_ON_CPU(weights, test::kF32);
  EXPECT_TRUE(test::same_bits(weights.download(), again.download()));
  EXPECT_AS_ON_CPU(dlogits, test::kF32);
  test::on_both([&](Device d) { router_bias_update(bias[d], counts[d], 0.25f, {}); });
  EXPECT_SAME_AS_ON_CPU(bias);
  EXPECT_SAME_AS_ON_CPU(counts);
}

TEST(RouterCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 5, 333}) {
    expect_as_on_cpu({.k = 1}, tokens, 1);
    expect_as_on_cpu({.k = 3, .normalize = false, .scaling = 2.5f}, tokens, 33);
    expect_as_on_cpu({.k = 8, .scaling = 2.5f}, tokens, 256);
    expect_as_on_cpu({.k = 4, .num_groups = 8, .kept_groups = 3}, tokens, 64);
    expect_as_on_cpu({.k = 33}, tokens, 40);
  }
}

TEST(RouterCuda, TiesGoToTheLowerExpert) {
  SKIP_WITHOUT_CUDA();
  const Both logits = test::as_is(test::filled({2, 70}, 0.5f)), bias = test::as_is(test::filled({70}, 1)), chosen = test::as_is(HostTensor(DType::i32, {2, 40}));
  const Both weights = test::f32_out({2, 40});
  test::on_both([&](Device d) { router({{.k = 40}, logits[d], bias[d], chosen[d], weights[d], {}, {}}); });
  EXPECT_SAME_AS_ON_CPU(chosen);
}

void expect_balance_as_on_cpu(const std::vector<int32_t>& starts, const std::vector<int32_t>& documents, const std::vector<int32_t>& document_tokens, int64_t experts) {
  SCOPED_TRACE(concat(starts.back(), " tokens in ", documents.size(), " runs, ", experts, " experts"));
  const int64_t runs = static_cast<int64_t>(documents.size()), num_documents = static_cast<int64_t>(document_tokens.size());
  const Both logits = test::as_is(test::random({starts.back(), experts}, 1)), run_starts = test::as_is(test::ints({runs + 1}, starts));
  const Both run_documents = test::as_is(test::ints({runs}, documents)), tokens = test::as_is(test::ints({num_documents}, document_tokens));
  const Both counts = test::as_is(test::zeros(DType::i64, {num_documents, experts})), loss = test::as_is(test::zeros(DType::f64, {1}));
  const Both dlogits = test::as_is(test::random({starts.back(), experts}, 2));
  const auto op = [&](Device d) {
    return BalanceLoss{.k = 4, .logits = logits[d], .run_starts = run_starts[d], .run_documents = run_documents[d], .document_tokens = tokens[d], .counts = counts[d],
                       .grad_scale = 50, .loss_sum = loss[d], .dlogits = dlogits[d], .workspace = {}, .stream = {}};
  };
  test::on_both([&](Device d) { return balance_loss_workspace_bytes(op(d)); },
                [&](Device d, const Tensor& space) {
                  BalanceLoss b = op(d);
                  b.workspace = space;
                  balance_counts({b.k, b.logits, b.run_starts, b.run_documents, b.counts, {}});
                  balance_loss(b);
                });
  EXPECT_SAME_AS_ON_CPU(counts);
  const HostTensor total = loss.download();
  EXPECT_NEAR(total.f64()[0], loss.host().f64()[0], 1e-6 * (1 + loss.host().f64()[0]));
  EXPECT_AS_ON_CPU(dlogits, test::kF32);
}

TEST(BalanceLossCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t experts : {6, 160}) {
    expect_balance_as_on_cpu({0, 1}, {0}, {1}, experts);
    expect_balance_as_on_cpu({0, 3, 7}, {0, 2}, {3, 0, 4}, experts);
    expect_balance_as_on_cpu({0, 100, 101, 333}, {1, 0, 1}, {1, 500}, experts);  // document 1 has tokens on another rank
  }
}

}  // namespace
}  // namespace hyscale
