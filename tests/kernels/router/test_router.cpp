#include "kernels/router/router.h"

#include <algorithm>
#include <numeric>

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }
double score_of(RouterScore score, double z) {
  if (score == RouterScore::sigmoid) return sigmoid(z);
  return score == RouterScore::softmax ? std::exp(z) : std::sqrt(std::log1p(std::exp(z)));
}

struct Routed {
  HostTensor experts, weights, counts;
};
Routed route(const RouterRule& rule, const HostTensor& logits, const HostTensor& bias) {
  const int64_t tokens = logits.t().size(0);
  Routed r{HostTensor(DType::i32, {tokens, rule.k}), HostTensor({tokens, rule.k}), test::zeros(DType::i64, {logits.t().size(1)})};
  router({rule, logits, bias, r.experts, r.weights, r.counts, {}});
  return r;
}

// Weights of the chosen experts in f64, choice fixed.
std::vector<double> naive_weights(const RouterRule& rule, const std::vector<double>& logits, const HostTensor& experts, size_t num_experts) {
  std::vector<double> out;
  const size_t k = static_cast<size_t>(rule.k);
  for (size_t t = 0; t < logits.size() / num_experts; ++t) {
    double sum = 0;
    for (size_t j = 0; j < k; ++j) sum += score_of(rule.score, logits[t * num_experts + static_cast<size_t>(experts.i32()[t * k + j])]);
    for (size_t j = 0; j < k; ++j) {
      const double s = score_of(rule.score, logits[t * num_experts + static_cast<size_t>(experts.i32()[t * k + j])]);
      out.push_back(rule.scaling * (rule.normalize ? s / sum : s));
    }
  }
  return out;
}

TEST(Router, ChoosesWithBiasAndWeighsWithout) {
  const RouterRule rule{.k = 2, .scaling = 2.5f};
  HostTensor logits = test::filled({1, 4}, 0), bias = test::filled({4}, 0);
  logits[0] = 2, logits[1] = 1, logits[2] = 0, logits[3] = -1;
  bias[3] = 10;
  const Routed r = route(rule, logits, bias);
  EXPECT_EQ(r.experts.i32()[0], 3);
  EXPECT_EQ(r.experts.i32()[1], 0);
  const double a = sigmoid(-1), b = sigmoid(2);
  EXPECT_NEAR(r.weights[0], 2.5 * a / (a + b), 1e-6);
  EXPECT_EQ(r.counts.t().data<int64_t>()[3], 1);
}

TEST(Router, GivenExpertsAreWeighedAsIfChosen) {
  const RouterRule rule{.k = 2};
  const HostTensor logits = test::random({4, 6}, 1), bias = test::random({6}, 2);
  const Routed chosen = route(rule, logits, bias);
  HostTensor weights({4, 2}), counts = test::zeros(DType::i64, {6});
  router({rule, logits, test::filled({6}, 100), chosen.experts, weights, counts, {}, true});
  EXPECT_TRUE(test::same_bits(weights, chosen.weights));
  EXPECT_TRUE(test::same_bits(counts, chosen.counts));
}

TEST(Router, SoftmaxOfLargeLogitsStaysFinite) {
  HostTensor logits = test::filled({1, 4}, 0);
  logits[1] = 1000, logits[2] = 999;
  const Routed r = route({.k = 2, .score = RouterScore::softmax}, logits, {});
  EXPECT_EQ(r.experts.i32()[0], 1);
  EXPECT_NEAR(r.weights[0], 1 / (1 + std::exp(-1.0)), 1e-6);
}

TEST(Router, TiesGoToTheLowerExpert) {
  const Routed r = route({.k = 3}, test::filled({2, 8}, 0.5f), test::filled({8}, 1));
  for (int64_t t = 0; t < 2; ++t)
    for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(r.experts.i32()[t * 3 + j], j);
}

TEST(Router, GroupsThatLoseAreNotEligible) {
  // Four groups of two; group scores are sums of their two best biased scores.
  const RouterRule rule{.k = 2, .num_groups = 4, .kept_groups = 1};
  HostTensor logits = test::filled({1, 8}, -5), bias = test::filled({8}, -3);  // negative biased scores: zero would win wrongly
  logits[0] = 4;                 // the single best expert, with a poor companion
  logits[6] = 2, logits[7] = 2;  // the best pair
  const Routed r = route(rule, logits, bias);
  EXPECT_EQ(r.experts.i32()[0], 6);
  EXPECT_EQ(r.experts.i32()[1], 7);
}

TEST(Router, BackwardMatchesCentralDifferences) {
  for (const auto& [normalize, score] : {std::pair{true, RouterScore::sigmoid}, {false, RouterScore::sigmoid}, {true, RouterScore::sqrt_softplus}, {false, RouterScore::sqrt_softplus},
                                         {true, RouterScore::softmax}}) {
    const RouterRule rule{.k = 3, .normalize = normalize, .scaling = 2.5f, .score = score};
    const HostTensor logits = test::random({5, 8}, 1), bias = test::random({8}, 2, 0.1f), dweights = test::random({5, 3}, 3);
    const Routed r = route(rule, logits, bias);
    EXPECT_CLOSE(r.weights, naive_weights(rule, test::doubles(logits), r.experts, 8), 1e-6);
    HostTensor dlogits({5, 8});
    router_backward({rule, logits, r.experts, dweights, dlogits, {}});
    const std::vector<double> dw = test::doubles(dweights);
    EXPECT_CLOSE(dlogits, test::central_differences(test::doubles(logits), [&](const auto& v) {
                   const std::vector<double> w = naive_weights(rule, v, r.experts, 8);
                   return std::inner_product(w.begin(), w.end(), dw.begin(), 0.0);
                 }), 1e-5);
  }
}

// Balance loss of documents [0, 3), [3, 3) (empty) and [3, 7) with the counts taken at the given logits.
double naive_balance(RouterScore score, const std::vector<double>& logits, const std::vector<double>& at, size_t experts, size_t k) {
  double loss = 0;
  for (const auto& [first, last] : {std::pair<size_t, size_t>{0, 3}, {3, 7}}) {
    std::vector<double> counts(experts), mass(experts);
    for (size_t t = first; t < last; ++t) {
      std::vector<size_t> order(experts);
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return at[t * experts + a] > at[t * experts + b]; });
      for (size_t j = 0; j < k; ++j) ++counts[order[j]];
      double sum = 0;
      for (size_t e = 0; e < experts; ++e) sum += score_of(score, logits[t * experts + e]);
      for (size_t e = 0; e < experts; ++e) mass[e] += score_of(score, logits[t * experts + e]) / sum;
    }
    const double n = static_cast<double>(last - first);
    for (size_t e = 0; e < experts; ++e) loss += static_cast<double>(experts) / (static_cast<double>(k) * n * n) * counts[e] * mass[e];
  }
  return loss;
}

TEST(Router, BalanceLossMatchesCentralDifferences) {
  const HostTensor logits = test::random({7, 6}, 1), tokens = test::ints({3}, {3, 0, 4});
  const std::vector<double> x = test::doubles(logits);
  // Whole documents; then the same in three runs, as two ranks would hold them: 0-4 | 5-6.
  for (const auto& [starts, documents] : {std::pair{std::vector<int32_t>{0, 3, 7}, std::vector<int32_t>{0, 2}}, {{0, 3, 5, 7}, {0, 2, 2}}}) {
    for (RouterScore score : {RouterScore::sigmoid, RouterScore::sqrt_softplus, RouterScore::softmax}) {
      HostTensor loss = test::zeros(DType::f64, {1}), dlogits = test::filled({7, 6}, 0), counts = test::zeros(DType::i64, {3, 6});
      const int64_t runs = static_cast<int64_t>(documents.size());
      const HostTensor run_starts = test::ints({runs + 1}, starts), run_documents = test::ints({runs}, documents);
      balance_counts({2, logits, run_starts, run_documents, counts, {}, score});
      balance_loss({2, logits, run_starts, run_documents, tokens, counts, 0.5f, loss, dlogits, {}, {}, score});
      EXPECT_NEAR(loss.f64()[0], naive_balance(score, x, x, 6, 2), 1e-6);
      EXPECT_CLOSE(dlogits, test::central_differences(x, [&](const auto& v) { return 0.5 * naive_balance(score, v, x, 6, 2); }), 1e-4);
    }
  }
}

TEST(Router, HashRoutingReadsTheTable) {
  const HostTensor tokens = test::ints({3}, {2, 0, 2});
  HostTensor table({3, 2}), experts(DType::i32, {3, 2});
  for (int64_t i = 0; i < 6; ++i) table[i] = static_cast<float>(10 + i);
  hash_route({tokens, table, experts, {}});
  EXPECT_TRUE(test::same_bits(experts, test::ints({3, 2}, {14, 15, 10, 11, 14, 15})));
}

TEST(Router, ExtremeLogitsKeepScoresAndGradientsFinite) {
  HostTensor logits = test::filled({1, 4}, 0), weights({1, 2}), dlogits({1, 4});
  logits[0] = 500, logits[1] = -500, logits[2] = -90, logits[3] = 90;
  for (const auto& chosen : {std::vector<int32_t>{0, 3}, {1, 2}}) {
    const HostTensor experts = test::ints({1, 2}, chosen), dweights = test::filled({1, 2}, 1);
    const RouterRule rule{.k = 2, .score = RouterScore::sqrt_softplus};
    router({rule, logits, {}, experts, weights, {}, {}, true});
    router_backward({rule, logits, experts, dweights, dlogits, {}});
    for (int64_t i = 0; i < 2; ++i) EXPECT_TRUE(std::isfinite(weights[i]));
    for (int64_t i = 0; i < 4; ++i) EXPECT_TRUE(std::isfinite(dlogits[i]));
  }
}

TEST(Router, BiasMovesTowardEvenLoadAndCountsRestart) {
  HostTensor bias = test::filled({4}, 1), counts = test::zeros(DType::i64, {4});
  const int64_t loads[] = {4, 1, 2, 1};  // mean 2
  std::copy_n(loads, 4, counts.t().data<int64_t>());
  router_bias_update(bias, counts, 0.25f, {});
  EXPECT_EQ(test::doubles(bias), (std::vector<double>{0.75, 1.25, 1, 1.25}));
  EXPECT_TRUE(test::same_bits(counts, test::zeros(DType::i64, {4})));
}

}  // namespace
}  // namespace hyscale
