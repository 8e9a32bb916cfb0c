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
    expect_as_on_cpu({.k = 6, .scaling = 1.5f, .score = RouterScore::sqrt_softplus}, tokens, 256);
    expect_as_on_cpu({.k = 10, .score = RouterScore::softmax}, tokens, 512);
  }
}

TEST(RouterCuda, TiesGoToTheLowerExpert) {
  SKIP_WITHOUT_CUDA();
  const Both logits = test::as_is(test::filled({2, 70}, 0.5f)), bias = test::as_is(test::filled({70}, 1)), chosen = test::as_is(HostTensor(DType::i32, {2, 40}));
  const Both weights = test::f32_out({2, 40});
  test::on_both([&](Device d) { router({{.k = 40}, logits[d], bias[d], chosen[d], weights[d], {}, {}}); });
  EXPECT_SAME_AS_ON_CPU(chosen);
}

// exp of these logits overflows, and softmax routers have no bias.
TEST(RouterCuda, SoftmaxOfLargeLogitsIsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  const RouterRule rule{.k = 4, .score = RouterScore::softmax};
  HostTensor large = test::random({50, 40}, 1);
  for (int64_t i = 0; i < large.size(); ++i) large[i] += 300;
  const Both logits = test::as_is(large), chosen = test::as_is(HostTensor(DType::i32, {50, 4})), weights = test::f32_out({50, 4}), dweights = test::as_is(test::random({50, 4}, 2));
  const Both dlogits = test::f32_out({50, 40});
  test::on_both([&](Device d) {
    router({rule, logits[d], {}, chosen[d], weights[d], {}, {}});
    router_backward({rule, logits[d], chosen[d], dweights[d], dlogits[d], {}});
  });
  EXPECT_SAME_AS_ON_CPU(chosen);
  EXPECT_AS_ON_CPU(weights, test::kF32);
  EXPECT_AS_ON_CPU(dlogits, test::kF32);
}

TEST(RouterCuda, HashRoutingIsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  HostTensor table({50, 6});
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i % 256);
  for (int32_t t = 0; t < 333; ++t) ids.push_back(t * 7 % 50);
  const Both tokens = test::as_is(test::ints({333}, ids)), rows = test::as_is(table), experts = test::as_is(HostTensor(DType::i32, {333, 6}));
  test::on_both([&](Device d) { hash_route({tokens[d], rows[d], experts[d], {}}); });
  EXPECT_SAME_AS_ON_CPU(experts);
}

TEST(BalanceLossCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (const auto& starts : {std::vector<int32_t>{0, 0}, {0, 1}, {0, 3, 3, 7}, {0, 100, 101, 333}})
    for (const auto& [experts, score] : {std::pair{int64_t{6}, RouterScore::sigmoid}, {160, RouterScore::sigmoid}, {256, RouterScore::sqrt_softplus}, {512, RouterScore::softmax}}) {
      SCOPED_TRACE(concat(starts.back(), " tokens, ", experts, " experts"));
      const int64_t documents = static_cast<int64_t>(starts.size()) - 1;
      std::vector<int32_t> ids, lengths;
      for (size_t d = 0; d + 1 < starts.size(); ++d) ids.push_back(static_cast<int32_t>(d)), lengths.push_back(starts[d + 1] - starts[d]);
      const Both logits = test::as_is(test::random({starts.back(), experts}, 1)), runs = test::as_is(test::ints({documents + 1}, starts));
      const Both run_ids = test::as_is(test::ints({documents}, ids)), tokens = test::as_is(test::ints({documents}, lengths));
      const Both counts = test::as_is(test::zeros(DType::i64, {documents, experts}));
      const Both loss = test::as_is(test::zeros(DType::f64, {1})), dlogits = test::as_is(test::random({starts.back(), experts}, 2));
      test::on_both([&](Device d) { balance_counts({4, logits[d], runs[d], run_ids[d], counts[d], {}, score}); });
      EXPECT_SAME_AS_ON_CPU(counts);
      const auto op = [&](Device d) { return BalanceLoss{4, logits[d], runs[d], run_ids[d], tokens[d], counts[d], 50, loss[d], dlogits[d], {}, {}, score}; };
      test::on_both(op, balance_loss_workspace_bytes, balance_loss);
      const HostTensor total = loss.download();
      EXPECT_NEAR(total.f64()[0], loss.host().f64()[0], 1e-6 * (1 + loss.host().f64()[0]));
      EXPECT_AS_ON_CPU(dlogits, test::kF32);
    }
}

}  // namespace
}  // namespace hyscale
