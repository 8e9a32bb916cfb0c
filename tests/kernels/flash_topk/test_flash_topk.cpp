// FlashTopK against a full sort. Where scores are small integers every summation is exact, so the sort decides by the very
// same scores and the comparison is bit for bit, ties included.
#include "kernels/flash_topk/flash_topk.h"

#include <algorithm>
#include <numeric>

#include "kernels/quantize_rows/quantize_rows.h"
#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

struct Problem {
  int64_t queries, heads, dims, num_keys, k;
  HostTensor q, weights, keys, begin, end;
};

// Small integers; keys of few distinct rows make ties and plateaus of zeros.
Problem integer_problem(uint64_t seed, int64_t queries, int64_t heads, int64_t dims, int64_t num_keys, int64_t k) {
  const Rng rng(seed);
  uint64_t at = 0;
  const auto draw = [&](int64_t range) { return static_cast<float>(static_cast<int64_t>(rng.below(at++, static_cast<uint64_t>(2 * range + 1))) - range); };
  Problem p{queries, heads, dims, num_keys, k, HostTensor({queries, heads, dims}), HostTensor({queries, heads}), HostTensor({num_keys, dims}),
            HostTensor(DType::i32, {queries}), HostTensor(DType::i32, {queries})};
  for (int64_t i = 0; i < p.q.size(); ++i) p.q[i] = draw(2);
  for (int64_t i = 0; i < p.weights.size(); ++i) p.weights[i] = draw(2);
  for (int64_t i = 0; i < p.keys.size(); ++i) p.keys[i] = draw(1);
  for (int64_t t = 0; t < queries; ++t) {
    const int64_t a = static_cast<int64_t>(rng.below(at++, static_cast<uint64_t>(num_keys + 1))), b = static_cast<int64_t>(rng.below(at++, static_cast<uint64_t>(num_keys + 1)));
    p.begin.i32()[t] = static_cast<int32_t>(std::min(a, b));
    p.end.i32()[t] = static_cast<int32_t>(std::max(a, b));
  }
  return p;
}

double score(const Problem& p, int64_t t, int64_t s) {
  double sum = 0;
  for (int64_t h = 0; h < p.heads; ++h) {
    double dot = 0;
    for (int64_t d = 0; d < p.dims; ++d) dot += double{p.q[(t * p.heads + h) * p.dims + d]} * p.keys[s * p.dims + d];
    sum += (p.weights.t().defined() ? p.weights[t * p.heads + h] : 1.0) * std::max(dot, 0.0);
  }
  return sum;
}

std::vector<int32_t> sorted_selection(const Problem& p, int64_t t) {
  std::vector<int32_t> order(static_cast<size_t>(p.end.i32()[t] - p.begin.i32()[t]));
  std::iota(order.begin(), order.end(), p.begin.i32()[t]);
  std::vector<double> scores(static_cast<size_t>(p.num_keys));
  for (int32_t s : order) scores[static_cast<size_t>(s)] = score(p, t, s);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)]; });
  order.resize(std::min(order.size(), static_cast<size_t>(p.k)));
  std::sort(order.begin(), order.end());
  return order;
}

struct Result {
  HostTensor indices, counts;
  int64_t nan_query;
};

// pieces: cuts of the key range, visited in `order`.
Result run(const Problem& p, std::vector<int64_t> cuts = {}, bool reversed = false) {
  HostTensor scores({p.queries, p.k}), kept(DType::i32, {p.queries, p.k}), counts(DType::i32, {p.queries}), nan(DType::i32, {1});
  FlashTopKState state{p.k, scores, kept, counts, nan};
  flash_topk_begin(state, {});
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(p.num_keys);
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const size_t piece = reversed ? cuts.size() - 2 - i : i;
    FlashTopKUpdate u{p.q, p.weights, p.keys.t().slice(0, cuts[piece], cuts[piece + 1]), cuts[piece], p.begin, p.end, {}, {}};
    const HostTensor space = test::workspace(flash_topk_update_workspace_bytes(state, u));
    u.workspace = space;
    flash_topk_update(state, u);
  }
  Result r{HostTensor(DType::i32, {p.queries, p.k}), HostTensor(DType::i32, {p.queries}), flash_topk_nan_query(state, {})};
  flash_topk_finish(state, {r.indices, r.counts}, {});
  return r;
}

void expect_sorted_selection(const Problem& p, const Result& r) {
  EXPECT_EQ(r.nan_query, -1);
  for (int64_t t = 0; t < p.queries; ++t) {
    const std::vector<int32_t> expected = sorted_selection(p, t);
    ASSERT_EQ(r.counts.i32()[t], static_cast<int32_t>(expected.size())) << "query " << t;
    for (int64_t j = 0; j < p.k; ++j)
      ASSERT_EQ(r.indices.i32()[t * p.k + j], j < static_cast<int64_t>(expected.size()) ? expected[static_cast<size_t>(j)] : -1) << "query " << t << ", slot " << j;
  }
}

TEST(FlashTopK, EqualsAFullSortForThousandsOfCases) {
  const Rng rng(5);
  for (uint64_t c = 0; c < 3000; ++c) {
    const auto pick = [&](uint64_t salt, std::initializer_list<int64_t> choices) { return choices.begin()[rng.below(c * 8 + salt, choices.size())]; };
    const Problem p = integer_problem(c, pick(0, {0, 1, 2, 5}), pick(1, {1, 2, 3, 4, 5, 8}), pick(2, {1, 2, 3, 8}), pick(3, {0, 1, 2, 15, 16, 17, 33, 127, 200}),
                                      pick(4, {1, 2, 3, 7, 16, 31, 64, 250}));
    expect_sorted_selection(p, run(p));
    if (HasFatalFailure()) FAIL() << "case " << c;
  }
}

TEST(FlashTopK, CutsAndTheirOrderDoNotMatter) {
  const Rng rng(6);
  for (uint64_t c = 0; c < 300; ++c) {
    Problem p = integer_problem(c, 4, 3, 5, 97, 9);
    if (c % 2) p.keys = test::random({97, 5}, c), p.q = test::random({4, 3, 5}, c + 1), p.weights = test::random({4, 3}, c + 2);
    std::vector<int64_t> cuts;
    for (uint64_t i = 0; i < 4; ++i) cuts.push_back(static_cast<int64_t>(rng.below(c * 4 + i, 98)));
    std::sort(cuts.begin(), cuts.end());
    const Result whole = run(p), pieces = run(p, cuts), reversed = run(p, cuts, true);
    ASSERT_TRUE(test::same_bits(whole.indices, pieces.indices)) << "case " << c;
    ASSERT_TRUE(test::same_bits(whole.indices, reversed.indices)) << "case " << c;
    ASSERT_TRUE(test::same_bits(whole.counts, reversed.counts)) << "case " << c;
  }
}

// One query whose scores are the key values themselves.
Problem scores_as_keys(const std::vector<float>& values, int64_t k) {
  const int64_t n = static_cast<int64_t>(values.size());
  Problem p{1, 1, 1, n, k, test::filled({1, 1, 1}, 1), test::filled({1, 1}, 1), HostTensor({n, 1}), test::ints({1}, {0}), test::ints({1}, {static_cast<int32_t>(n)})};
  std::copy(values.begin(), values.end(), p.keys.f32());
  return p;
}

TEST(FlashTopK, RisingFallingEqualAndOutlier) {
  const int64_t n = 1000, k = 37;
  std::vector<float> rising(n), falling(n), equal(n, 2), zeros(n, -1), outlier(n, 1);
  for (int64_t i = 0; i < n; ++i) rising[static_cast<size_t>(i)] = static_cast<float>(i), falling[static_cast<size_t>(i)] = static_cast<float>(n - i);
  outlier[777] = 1e30f;
  for (const auto& values : {rising, falling, equal, zeros, outlier}) expect_sorted_selection(scores_as_keys(values, k), run(scores_as_keys(values, k)));
}

TEST(FlashTopK, NegativeWeightsPutThePlateauOfZerosOnTop) {
  std::vector<float> values(100, -1);  // relu makes them 0
  for (size_t i = 0; i < 50; ++i) values[2 * i] = 1;
  Problem p = scores_as_keys(values, 10);
  p.weights[0] = -1;  // visible scores: -1 at even keys, 0 at odd keys
  const Result r = run(p);
  for (int32_t j = 0; j < 10; ++j) EXPECT_EQ(r.indices.i32()[j], 2 * j + 1);
}

TEST(FlashTopK, WithoutWeightsAllAreOne) {
  Problem p = integer_problem(3, 5, 4, 3, 60, 7), ones = p;
  p.weights = HostTensor();
  std::fill_n(ones.weights.f32(), ones.weights.size(), 1.0f);
  EXPECT_TRUE(test::same_bits(run(p).indices, run(ones).indices));
}

// Scales are powers of two and values have few bits, so the values that e4m3 stands for lead to the same scores, bit for bit.
TEST(FlashTopK, E4m3SelectsByTheValuesItStandsFor) {
  const int64_t queries = 20, heads = 3, dims = 16, num_keys = 700;
  Problem p = integer_problem(12, queries, heads, dims, num_keys, 50);
  p.q = test::random({queries, heads, dims}, 1), p.keys = test::random({num_keys, dims}, 2), p.weights = test::random({queries, heads}, 3);
  HostTensor q(DType::f8e4m3, {queries, heads, dims}), keys(DType::f8e4m3, {num_keys, dims}), q_scales({queries, heads}), key_scales({num_keys});
  quantize_rows({p.q.t().view({queries * heads, dims}), q.t().view({queries * heads, dims}), q_scales.t().view({queries * heads}), {}});
  quantize_rows({p.keys, keys, key_scales, {}});
  for (int64_t i = 0; i < p.q.size(); ++i) p.q[i] = e4m3_to_float(q.t().data<uint8_t>()[i]) * q_scales[i / dims];
  for (int64_t i = 0; i < p.keys.size(); ++i) p.keys[i] = e4m3_to_float(keys.t().data<uint8_t>()[i]) * key_scales[i / dims];
  const Result values = run(p);
  HostTensor scores({queries, p.k}), kept(DType::i32, {queries, p.k}), counts(DType::i32, {queries}), nan(DType::i32, {1});
  FlashTopKState state{p.k, scores, kept, counts, nan};
  flash_topk_begin(state, {});
  FlashTopKUpdate u{q, p.weights, keys, 0, p.begin, p.end, {}, {}, q_scales, key_scales};
  const HostTensor space = test::workspace(flash_topk_update_workspace_bytes(state, u));
  u.workspace = space;
  flash_topk_update(state, u);
  const HostTensor indices(DType::i32, {queries, p.k}), out_counts(DType::i32, {queries});
  flash_topk_finish(state, {indices, out_counts}, {});
  EXPECT_TRUE(test::same_bits(indices, values.indices));
  EXPECT_TRUE(test::same_bits(out_counts, values.counts));
  u.key_scales = {};
  EXPECT_THROW(flash_topk_update(state, u), InternalError);
}

TEST(FlashTopK, NanNamesTheLowestQueryThatSeesIt) {
  Problem p = integer_problem(4, 6, 2, 3, 50, 5);
  for (int64_t t = 0; t < 6; ++t) p.begin.i32()[t] = t < 2 ? 30 : 0, p.end.i32()[t] = 50;
  p.keys[10 * 3 + 1] = NAN;  // seen by queries 2 and later
  for (int64_t i = 0; i < p.weights.size(); ++i) p.weights[i] = 1;
  EXPECT_EQ(run(p).nan_query, 2);
}

TEST(FlashTopK, LongRangeAndKLargerThanVisible) {
  Problem p = integer_problem(8, 3, 2, 4, 20011, 500);
  p.begin.i32()[0] = 0, p.end.i32()[0] = 20011;
  p.begin.i32()[1] = 7, p.end.i32()[1] = 207;  // all 200 are selected
  p.begin.i32()[2] = 50, p.end.i32()[2] = 50;  // an empty document
  const Result r = run(p);
  expect_sorted_selection(p, r);
  EXPECT_EQ(r.counts.i32()[1], 200);
  EXPECT_EQ(r.counts.i32()[2], 0);
}

TEST(FlashTopK, WorkspaceDoesNotGrowWithQueriesTimesKeys) {
  const auto bytes = [](int64_t queries, int64_t keys) {
    FlashTopKState state{64, Tensor(nullptr, DType::f32, {}, {queries, 64}), {}, {}, {}};
    return flash_topk_update_workspace_bytes(state, {Tensor(nullptr, DType::f32, {}, {queries, 4, 16}), {}, Tensor(nullptr, DType::f32, {}, {keys, 16}), 0, {}, {}, {}, {}});
  };
  EXPECT_EQ(bytes(1 << 20, 1 << 16), bytes(1, 1 << 16));
  EXPECT_LT(bytes(1, 1 << 20), size_t{1 << 20} * 16 * 4 + (1 << 20));
}

}  // namespace
}  // namespace hyscale
