// Selection health against definitions in f64: dense attention row by row, sets, sorted scores.
#include "models/selection_health.h"

#include <algorithm>
#include <cmath>

#include "tests/support/model_runs.h"

namespace hyscale {
namespace {

using test::HostTensor;
using test::ints;
using test::random;

constexpr int64_t kHeads = 3, kWidth = 10, kValues = 8, kIndexHeads = 2, kIndexWidth = 4;

struct Problem {
  int64_t tokens, k;
  HostTensor q = random({tokens, kHeads, kWidth}, 1), kv = random({tokens, kWidth}, 2);
  HostTensor index_q = random({tokens, kIndexHeads, kIndexWidth}, 3), weights = random({tokens, kIndexHeads}, 4), keys = random({tokens, kIndexWidth}, 5);
  HostTensor begin, end;
  Arena scratch{Device{}, "workspace"};
  Context ctx;

  Problem(const std::vector<int32_t>& starts, int64_t k_) : tokens(starts.back()), k(k_), begin(DType::i32, {tokens}), end(DType::i32, {tokens}) {
    for (size_t d = 0; d + 1 < starts.size(); ++d)
      for (int32_t t = starts[d]; t < starts[d + 1]; ++t) begin.i32()[t] = starts[d], end.i32()[t] = t + 1;
    ctx.scratch = &scratch;
  }
  SelectionHealth::Layer layer(int slot) const { return {slot, k, q, kv, kValues, 0.3f, index_q, weights, keys, begin, end}; }

  // Visible keys, best first, with minus their score.
  std::vector<std::pair<double, int32_t>> ranking(int64_t t) const {
    std::vector<std::pair<double, int32_t>> scored;
    for (int32_t s = begin.i32()[t]; s <= t; ++s) scored.push_back({-score(t, s), s});
    std::sort(scored.begin(), scored.end());
    return scored;
  }
  std::vector<int32_t> best(int64_t t) const {
    const auto scored = ranking(t);
    std::vector<int32_t> keys_of_t;
    for (int64_t i = 0; i < k; ++i) keys_of_t.push_back(scored[static_cast<size_t>(i)].second);
    std::sort(keys_of_t.begin(), keys_of_t.end());
    return keys_of_t;
  }
  double score(int64_t t, int64_t s) const {
    double sum = 0;
    for (int64_t h = 0; h < kIndexHeads; ++h) {
      double dot = 0;
      for (int64_t d = 0; d < kIndexWidth; ++d) dot += double{index_q[(t * kIndexHeads + h) * kIndexWidth + d]} * keys[s * kIndexWidth + d];
      sum += weights[t * kIndexHeads + h] * std::max(dot, 0.0);
    }
    return sum;
  }
  double recall(int64_t t) const {
    const std::vector<int32_t> chosen = best(t);
    double mean = 0;
    for (int64_t h = 0; h < kHeads; ++h) {
      double all = 0, inside = 0;
      for (int32_t s = begin.i32()[t]; s <= t; ++s) {
        double dot = 0;
        for (int64_t d = 0; d < kWidth; ++d) dot += double{q[(t * kHeads + h) * kWidth + d]} * kv[s * kWidth + d];
        const double e = std::exp(0.3 * dot);
        all += e;
        if (std::binary_search(chosen.begin(), chosen.end(), s)) inside += e;
      }
      mean += inside / all / kHeads;
    }
    return mean;
  }
};

double shared(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  int common = 0;
  for (int32_t key : a) common += std::count(b.begin(), b.end(), key);
  return common / static_cast<double>(a.size());
}

TEST(SelectionHealth, MatchesTheDefinition) {
  Problem p({0, 5, 60, 61, 137}, 7);
  std::vector<int64_t> choices;
  for (int64_t t = 0; t + 1 < p.tokens; ++t)
    if (p.end.i32()[t] - p.begin.i32()[t] > p.k && p.begin.i32()[t + 1] == p.begin.i32()[t]) choices.push_back(t);
  const int64_t n = static_cast<int64_t>(choices.size());
  SelectionHealth health(2, n);  // all of them
  health.observe(p.ctx, p.layer(0));
  std::vector<std::vector<int32_t>> below;
  double recall = 0, neighbours = 0, layers = 0, tied = 0;
  for (int64_t t : choices) {
    recall += p.recall(t) / static_cast<double>(n);
    neighbours += shared(p.best(t), p.best(t + 1)) / static_cast<double>(n);
    below.push_back(p.best(t));
    const auto ranking = p.ranking(t);  // relu leaves many scores at exactly zero
    tied += (ranking[6].first == ranking[7].first) / static_cast<double>(n);
  }
  p.index_q = random({p.tokens, kIndexHeads, kIndexWidth}, 9);  // another layer
  health.observe(p.ctx, p.layer(1));
  for (size_t i = 0; i < choices.size(); ++i) layers += shared(p.best(choices[i]), below[i]) / static_cast<double>(n);
  const auto means = health.means();
  EXPECT_EQ(means[0].queries, n);
  EXPECT_NEAR(means[0].recall, recall, 1e-5);
  EXPECT_NEAR(means[0].neighbours, neighbours, 1e-12);
  EXPECT_TRUE(std::isnan(means[0].below));
  EXPECT_NEAR(means[1].below, layers, 1e-12);
  EXPECT_NEAR(means[0].tied, tied, 1e-12);
}

TEST(SelectionHealth, LongSequencesAreCutIntoChunks) {
  Problem p({0, 20000}, 16);
  SelectionHealth health(1, 4);
  health.observe(p.ctx, p.layer(0));
  double recall = 0;
  for (int64_t i = 0; i < 4; ++i) recall += p.recall(16 + (2 * i + 1) * (20000 - 1 - 16) / 8) / 4;  // evenly over the queries with a choice
  EXPECT_NEAR(health.means()[0].recall, recall, 1e-5);
}

TEST(SelectionHealth, TiesAtTheLastPlaceAreSeen) {
  Problem p({0, 64}, 5);
  std::fill_n(p.keys.f32(), p.keys.size(), 1.0f);  // every score of a query is the same
  SelectionHealth health(1);
  health.observe(p.ctx, p.layer(0));
  EXPECT_EQ(health.means()[0].tied, 1);
  EXPECT_GT(health.means()[0].neighbours, 0.999);  // both take the lowest indices
}

TEST(SelectionHealth, WithoutAChoiceNothingIsSaid) {
  Problem p({0, 5, 9}, 7);
  SelectionHealth health(1);
  health.observe(p.ctx, p.layer(0));
  EXPECT_EQ(health.means()[0].queries, 0);
  EXPECT_TRUE(std::isnan(health.means()[0].recall));
}

TEST(SelectionHealth, MetaCountsTheMemoryThatIsUsed) {
  Problem p({0, 300}, 7);
  SelectionHealth health(1);
  health.observe(p.ctx, p.layer(0));
  Arena scratch(Device{DeviceType::meta}, "workspace");
  Context ctx = p.ctx;
  ctx.device = Device{DeviceType::meta};
  ctx.scratch = &scratch;
  SelectionHealth::Layer l = p.layer(0);
  for (Tensor* t : {&l.q, &l.kv, &l.index_q, &l.index_weights, &l.index_keys, &l.key_begin, &l.key_end}) *t = Tensor(nullptr, t->dtype(), ctx.device, t->shape());
  SelectionHealth planned(1);
  planned.observe(ctx, l);
  EXPECT_EQ(scratch.peak_bytes(), p.scratch.peak_bytes());
}

TEST(SelectionHealth, EveryFamilyIsObservedAndChangesNoBit) {
  for (const char* family : {"glm51", "glm52_shared", "deepseek_v4"}) {
    const nlohmann::json config = read_hf_config(std::string("tests/goldens/") + family + "/config.json");
    const auto watched = test::make_random(config), plain = test::make_random(config);
    const HostSequence s = test::sequence({300, 20});
    SelectionHealth health(watched->num_selecting_layers());
    Step step(*watched, test::run_options(Recompute::layer));
    step.watch(&health);
    StepTotals totals;
    totals.add(s, 0);
    step.begin(totals);
    step.micro_batch(s, true);
    test::train_once(*plain, test::run_options(Recompute::layer), {s});
    EXPECT_TRUE(test::gradients_of(*watched) == test::gradients_of(*plain)) << family;
    for (const SelectionHealth::Means& m : health.means()) {
      EXPECT_EQ(m.queries, 8) << family;
      EXPECT_GT(m.recall, 0) << family;
      EXPECT_LE(m.recall, 1 + 1e-5) << family;
      EXPECT_GT(m.neighbours, 0) << family;
    }
  }
}

}  // namespace
}  // namespace hyscale
