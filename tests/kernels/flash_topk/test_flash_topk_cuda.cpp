// FlashTopK on CUDA against the CPU form. Scores of small integers are exact in any order of summation, so both decide by
// the same scores and the comparison is bit for bit, ties included.
#include <algorithm>
#include <array>

#include "kernels/flash_topk/flash_topk.h"
#include "kernels/quantize_rows/quantize_rows.h"
#include "tests/support/device_tensors.h"

namespace hyscale {
namespace {

using test::DeviceTensor;
using test::HostTensor;

struct Problem {
  int64_t queries, heads, dims, num_keys, k;
  HostTensor q, weights, keys, begin, end;
  HostTensor q_scales, key_scales;  // of q and keys as e4m3
  bool scaled() const { return q.t().dtype() == DType::f8e4m3; }
};

// Small integers are exact in e4m3, and so are the sums of their products on the tensor cores.
Problem as_e4m3(Problem p) {
  HostTensor q(DType::f8e4m3, p.q.t().shape()), keys(DType::f8e4m3, p.keys.t().shape());
  p.q_scales = HostTensor({p.queries, p.heads});
  p.key_scales = HostTensor({p.num_keys});
  quantize_rows({p.q.t().view({p.queries * p.heads, p.dims}), q.t().view({p.queries * p.heads, p.dims}), p.q_scales.t().view({p.queries * p.heads}), {}});
  quantize_rows({p.keys, keys, p.key_scales, {}});
  p.q = q;
  p.keys = keys;
  return p;
}

Problem integers(uint64_t seed, int64_t queries, int64_t heads, int64_t dims, int64_t num_keys, int64_t k, bool weighted) {
  const Rng rng(seed);
  uint64_t at = 0;
  const auto draw = [&](int64_t range) { return static_cast<float>(static_cast<int64_t>(rng.below(at++, static_cast<uint64_t>(2 * range + 1))) - range); };
  Problem p{queries, heads, dims, num_keys, k, HostTensor({queries, heads, dims}), {}, HostTensor({num_keys, dims}), HostTensor(DType::i32, {queries}), HostTensor(DType::i32, {queries})};
  if (weighted) p.weights = HostTensor({queries, heads});
  // Mostly zeros: few distinct scores, and with them ties and the plateau of zero.
  for (int64_t i = 0; i < p.q.size(); ++i) p.q[i] = rng.below(at++, 8) == 0 ? draw(2) : 0;
  for (int64_t i = 0; weighted && i < p.weights.size(); ++i) p.weights[i] = draw(2);
  for (int64_t i = 0; i < p.keys.size(); ++i) p.keys[i] = rng.below(at++, 4) == 0 ? draw(1) : 0;
  for (int64_t t = 0; t < queries; ++t) {
    const int64_t a = static_cast<int64_t>(rng.below(at++, static_cast<uint64_t>(num_keys + 1))), b = static_cast<int64_t>(rng.below(at++, static_cast<uint64_t>(num_keys + 1)));
    p.begin.i32()[t] = static_cast<int32_t>(std::min(a, b));
    p.end.i32()[t] = static_cast<int32_t>(t % 5 == 0 ? std::min<int64_t>(num_keys, std::min(a, b) + k + t % 3 - 1) : std::max(a, b));  // k - 1, k or k + 1 visible
    p.end.i32()[t] = std::max(p.end.i32()[t], p.begin.i32()[t]);
  }
  return p;
}

struct Result {
  HostTensor indices, counts;
  int64_t nan_query;
};

Result on_cpu(const Problem& p, int64_t shift = 0) {
  HostTensor scores({p.queries, p.k}), kept(DType::i32, {p.queries, p.k}), counts(DType::i32, {p.queries}), nan(DType::i32, {1});
  FlashTopKState state{p.k, scores, kept, counts, nan};
  flash_topk_begin(state, {});
  FlashTopKUpdate u{p.q, p.weights, p.keys, shift, p.begin, p.end, {}, {}, p.q_scales, p.key_scales};
  const HostTensor space = test::workspace(flash_topk_update_workspace_bytes(state, u));
  u.workspace = space;
  flash_topk_update(state, u);
  Result r{HostTensor(DType::i32, {p.queries, p.k}), HostTensor(DType::i32, {p.queries}), flash_topk_nan_query(state, {})};
  flash_topk_finish(state, {r.indices, r.counts}, {});
  return r;
}

Result on_cuda(const Problem& p, std::vector<int64_t> cuts = {}, bool reversed = false, int64_t shift = 0) {
  const DType dtype = p.scaled() ? DType::f8e4m3 : DType::bf16;
  const HostTensor one = test::filled({1}, 1);
  const DeviceTensor q(p.q, dtype), keys(p.keys, dtype), q_scales(p.scaled() ? p.q_scales : one, DType::f32), key_scales(p.scaled() ? p.key_scales : one, DType::f32), begin(p.begin, DType::i32), end(p.end, DType::i32);
  const DeviceTensor weights(p.weights.t().defined() ? p.weights : HostTensor({1}), DType::f32);
  const DeviceTensor scores(DType::f32, {p.queries, p.k}), kept(DType::i32, {p.queries, p.k}), counts(DType::i32, {p.queries}), nan(DType::i32, {1});
  FlashTopKState state{p.k, scores, kept, counts, nan};
  flash_topk_begin(state, {});
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(p.num_keys);
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const size_t piece = reversed ? cuts.size() - 2 - i : i;
    const Tensor &all = keys, &all_scales = key_scales;
    FlashTopKUpdate u{q, p.weights.t().defined() ? static_cast<const Tensor&>(weights) : Tensor(), all.slice(0, cuts[piece], cuts[piece + 1]), shift + cuts[piece], begin, end, {}, {}};
    if (p.scaled()) u.q_scales = q_scales, u.key_scales = all_scales.slice(0, cuts[piece], cuts[piece + 1]);
    const DeviceTensor space(DType::u8, {static_cast<int64_t>(flash_topk_update_workspace_bytes(state, u))});
    u.workspace = space;
    flash_topk_update(state, u);
    synchronize(test::kCuda, {});
  }
  const DeviceTensor indices(DType::i32, {p.queries, p.k}), out_counts(DType::i32, {p.queries});
  const int64_t nan_query = flash_topk_nan_query(state, {});
  flash_topk_finish(state, {indices, out_counts}, {});
  return {indices.download(), out_counts.download(), nan_query};
}

void expect_equal(const Result& a, const Result& b, const std::string& what) {
  EXPECT_TRUE(test::same_bits(a.counts, b.counts)) << what;
  EXPECT_TRUE(test::same_bits(a.indices, b.indices)) << what;
  EXPECT_EQ(a.nan_query, b.nan_query) << what;
}

#define SKIP_WITHOUT_DEVICE() \
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device"

TEST(FlashTopKCuda, EqualsTheReferenceBitForBit) {
  SKIP_WITHOUT_DEVICE();
  uint64_t seed = 0;
  for (const auto& [heads, weighted] : {std::pair<int64_t, bool>{32, true}, {32, false}, {64, true}, {4, false}, {8, true}})
    for (int64_t dims : {64, 128})
      for (const auto& [queries, keys, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {3, 127, 7}, {9, 129, 64}, {65, 1000, 512}, {70, 5003, 512}, {33, 9001, 2048}, {8, 20011, 4096}, {0, 50, 4}}) {
        const Problem p = integers(++seed, queries, heads, dims, keys, k, weighted);
        const Result expected = on_cpu(p);
        expect_equal(on_cuda(p), expected, concat(heads, " heads of ", dims, ", ", queries, " queries, ", keys, " keys, k ", k));
        expect_equal(on_cpu(as_e4m3(p)), expected, concat("CPU, e4m3, ", heads, " heads of ", dims));
        expect_equal(on_cuda(as_e4m3(p)), expected, concat("e4m3, ", heads, " heads of ", dims, ", ", queries, " queries, ", keys, " keys, k ", k));
      }
}

TEST(FlashTopKCuda, CutsInAnyOrderAndTwoRunsAreBitEqual) {
  SKIP_WITHOUT_DEVICE();
  for (int64_t heads : {32, 64, 8}) {
    Problem p = integers(77, 40, heads, 128, 12007, 300, true);
    const Result ties = on_cpu(p);
    expect_equal(on_cuda(p, {1000, 1001, 7777}), ties, "ties, in order");
    expect_equal(on_cuda(p, {1000, 1001, 7777}, true), ties, "ties, reversed");
    p.q = test::random({40, heads, 128}, 1), p.keys = test::random({12007, 128}, 2), p.weights = test::random({40, heads}, 3);
    const Result whole = on_cuda(p);
    expect_equal(on_cuda(p), whole, "twice");
    expect_equal(on_cuda(p, {128, 4000, 9999}), whole, "in order");
    expect_equal(on_cuda(p, {128, 4000, 9999}, true), whole, "reversed");
    p = as_e4m3(p);
    const Result whole_e4m3 = on_cuda(p);
    expect_equal(on_cuda(p), whole_e4m3, "e4m3, twice");
    expect_equal(on_cuda(p, {128, 4001, 9999}, true), whole_e4m3, "e4m3, reversed");
  }
}

// More queries than the multiprocessors take at once: blocks go from task to task while lists of the last are still being cut.
TEST(FlashTopKCuda, ManyTasksPerBlock) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [heads, queries, keys, k] : std::vector<std::array<int64_t, 4>>{{32, 3300, 5003, 600}, {64, 1700, 5003, 600}, {4, 17500, 2600, 300}, {32, 5000, 300, 200}}) {
    const Problem p = integers(static_cast<uint64_t>(queries), queries, heads, 64, keys, k, heads != 4);
    const Result expected = on_cpu(p);
    expect_equal(on_cuda(p), expected, concat(heads, " heads, ", queries, " queries"));
    expect_equal(on_cuda(p, {keys / 3, keys / 2}, true), expected, concat(heads, " heads, ", queries, " queries, cut and reversed"));
    if (heads == 4) continue;  // a plain form, tested above
    Problem wide = integers(static_cast<uint64_t>(queries), queries, heads, 128, keys, k, true);
    expect_equal(on_cuda(as_e4m3(wide)), on_cpu(wide), concat("e4m3, ", heads, " heads, ", queries, " queries"));
  }
}

TEST(FlashTopKCuda, OrdersThatAreHardForAScan) {
  SKIP_WITHOUT_DEVICE();
  const int64_t n = 30000, k = 700;
  for (int kind = 0; kind < 5; ++kind) {
    Problem p = integers(5, 8, 32, 128, n, k, true);
    for (int64_t i = 0; i < p.q.size(); ++i) p.q[i] = i % 128 == 0 && i / 128 % 32 == 0;  // one head reads one dimension
    for (int64_t i = 0; i < p.weights.size(); ++i) p.weights[i] = kind == 4 ? -1 : 1;
    for (int64_t i = 0; i < p.keys.size(); ++i) p.keys[i] = 0;
    for (int64_t s = 0; s < n; ++s) {
      const float rising = static_cast<float>(s / 128);  // exact in bf16 up to 256
      p.keys[s * 128] = kind == 0 ? rising : kind == 1 ? 255 - rising : kind == 2 ? 3 : kind == 3 ? (s == 12345 ? 1e30f : 1) : (s % 2 ? 1 : -1);
    }
    for (int64_t t = 0; t < 8; ++t) p.begin.i32()[t] = static_cast<int32_t>(t), p.end.i32()[t] = static_cast<int32_t>(n - t);
    expect_equal(on_cuda(p), on_cpu(p), concat("kind ", kind));
  }
}

TEST(FlashTopKCuda, NanNamesTheLowestQueryAndFirstKeyShifts) {
  SKIP_WITHOUT_DEVICE();
  Problem p = integers(6, 20, 32, 128, 3000, 100, true);
  for (int64_t i = 0; i < p.weights.size(); ++i) p.weights[i] = 1;
  for (int64_t t = 0; t < 20; ++t) p.begin.i32()[t] = 50000 + (t < 7 ? 500 : 0), p.end.i32()[t] = 53000;
  expect_equal(on_cuda(p, {}, false, 50000), on_cpu(p, 50000), "keys from 50,000");
  p.keys[100 * 128 + 3] = NAN;
  p.end.i32()[7] = p.begin.i32()[7];  // sees no key at all
  for (int64_t i = 0; i < p.q.size(); ++i) p.q[i] = 1;
  EXPECT_EQ(on_cuda(p, {}, false, 50000).nan_query, 8);
}

}  // namespace
}  // namespace hyscale
