#include "bench/topk_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/common/e4m3.cuh"
#include "kernels/quantize_rows/quantize_rows.h"

namespace hyscale::bench {
namespace {

using Kind = TopKShape::Kind;
constexpr int64_t kDims = TopKCase::kDims;
constexpr int64_t kDocument = 1531;  // longest of the documents, whose lengths go round

__host__ __device__ int64_t document_begin(int64_t token) {
  const int64_t round = token / (2 * kDocument) * 2 * kDocument, at = token % (2 * kDocument);
  return round + (at < 17 ? 0 : at < 17 + kDocument ? 17 : 17 + kDocument);
}

__global__ void ranges_kernel(int32_t* begin, int32_t* end, TopKShape s) {
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; t < s.queries; t += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t token = s.keys - s.queries + t;
    begin[t] = s.kind == Kind::documents ? static_cast<int32_t>(document_begin(token)) : 0;
    end[t] = static_cast<int32_t>(s.ratio > 1 ? (t + 1) / s.ratio : s.queries <= s.keys ? token + 1 : s.keys);
  }
}

// Queries are all ones where keys make the scores; keys in place of normal ones.
__global__ void queries_kernel(bf16* q, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) q[i] = __float2bfloat16(1);
}
__global__ void keys_kernel(bf16* keys, const bf16* normal, TopKShape s) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < s.keys * kDims; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t key = i / kDims, d = i % kDims, place = s.kind == Kind::falling ? s.keys - 1 - key : key;
    float x = 1;
    // Digits of a key's place in base 128 spread over three dimensions: the sum rises with the place exactly.
    if (s.kind == Kind::rising || s.kind == Kind::falling) x = d == 0 ? static_cast<float>(place / 16384) * 16384 : d == 1 ? static_cast<float>(place / 128 % 128) * 128 : d == 2 ? static_cast<float>(place % 128) : 0;
    if (s.kind == Kind::zeros) x = key % 1009 == 5 ? static_cast<float>(1 + key % 7) : -1;
    if (s.kind == Kind::outlier && key == s.keys / 3) x = 0x1p20f;
    if (s.kind == Kind::clustered) x = to_f32(normal[key / 64 * kDims + d]) + to_f32(normal[i]) / 16;
    keys[i] = __float2bfloat16(x);
  }
}

__global__ void dequantize_kernel(const e4m3* from, const float* scales, bf16* to, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) to[i] = __float2bfloat16(to_f32(from[i]) * scales[i / kDims]);
}

// Scores of one query in f64 from the bf16 inputs.
__global__ void exact_scores_kernel(const bf16* __restrict__ q, const bf16* __restrict__ keys, const float* __restrict__ weights, double* __restrict__ scores, int heads, int64_t count) {
  for (int64_t s = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; s < count; s += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    double sum = 0;
    for (int h = 0; h < heads; ++h) {
      double dot = 0;
      for (int d = 0; d < kDims; ++d) dot += static_cast<double>(to_f32(q[h * kDims + d])) * static_cast<double>(to_f32(keys[s * kDims + d]));
      sum += (weights ? weights[h] : 1) * fmax(dot, 0.0);
    }
    scores[s] = sum;
  }
}

std::vector<int64_t> sampled_queries(const TopKShape& s) { return {0, std::min<int64_t>(1, s.queries - 1), std::min(s.queries / 2 + 3, s.queries - 1), s.queries - 1}; }

}  // namespace

TopKCase::TopKCase(const TopKShape& s) : shape(s) {
  q = memory.normal({s.queries, s.heads, kDims}, 1);
  keys = memory.normal({s.keys, kDims}, 2);
  const bool by_keys = s.kind != Kind::normal && s.kind != Kind::clustered && s.kind != Kind::documents;
  if (s.weighted) weights = by_keys ? memory.uniform({s.queries, s.heads}, 3, 0.03125f, 0.03125f) : memory.uniform({s.queries, s.heads}, 3, -0.05f, 0.15f);
  begin = memory.make(DType::i32, {s.queries}, "ranges");
  end = memory.make(DType::i32, {s.queries}, "ranges");
  ranges_kernel<<<256, 256>>>(begin.i32(), end.i32(), s);
  if (by_keys) queries_kernel<<<1024, 256>>>(q.data<bf16>(), q.elements());
  if (by_keys || s.kind == Kind::clustered) {
    const Tensor normal = keys;
    keys = memory.make(DType::bf16, keys.shape(), "keys");
    keys_kernel<<<1024, 256>>>(keys.data<bf16>(), normal.data<bf16>(), s);
  }
  if (s.e4m3) {
    q8 = memory.make(DType::f8e4m3, q.shape(), "e4m3"), q_scales = memory.make(DType::f32, {s.queries, s.heads}, "e4m3");
    keys8 = memory.make(DType::f8e4m3, keys.shape(), "e4m3"), key_scales = memory.make(DType::f32, {s.keys}, "e4m3");
    quantize();
    dequantize_kernel<<<1024, 256>>>(q8.data<e4m3>(), q_scales.f32(), q.data<bf16>(), q.elements());
    dequantize_kernel<<<1024, 256>>>(keys8.data<e4m3>(), key_scales.f32(), keys.data<bf16>(), keys.elements());
  }
  synchronize(kCuda, {});
  const std::vector<int32_t> first = download<int32_t>(begin, 0, s.queries), last = download<int32_t>(end, 0, s.queries);
  for (size_t t = 0; t < first.size(); ++t) pairs += last[t] - first[t];
}

void TopKCase::quantize() const {
  if (!shape.e4m3) return;
  quantize_rows({q.view({-1, kDims}), q8.view({-1, kDims}), q_scales.view({-1}), {}});
  quantize_rows({keys, keys8, key_scales, {}});
}

FlashTopKUpdate TopKCase::update() const {
  return {shape.e4m3 ? q8 : q, weights, shape.e4m3 ? keys8 : keys, 0, begin, end, {}, {}, q_scales, key_scales};
}

FlashTopKState TopKCase::state(Memory& m, int64_t queries, int64_t k) const {
  return {k, m.make(DType::f32, {queries, k}, "state"), m.make(DType::i32, {queries, k}, "state"), m.make(DType::i32, {queries}, "state"), m.make(DType::i32, {1}, "state")};
}

std::string TopKCase::check_against_f64(const Tensor& indices, double band) const {
  Memory m;
  const Tensor exact = m.make(DType::f64, {shape.keys}, "exact scores");
  for (const int64_t t : sampled_queries(shape)) {
    const int64_t first = download<int32_t>(begin, t, 1)[0], last = download<int32_t>(end, t, 1)[0], wanted = std::min(shape.k, last - first);
    if (wanted == 0) continue;
    exact_scores_kernel<<<1024, 256>>>(q.data<bf16>() + t * shape.heads * kDims, keys.data<bf16>(), weights.defined() ? weights.f32() + t * shape.heads : nullptr, exact.data<double>(),
                                       static_cast<int>(shape.heads), last);
    const std::vector<double> scores = download<double>(exact, 0, last);
    const std::vector<int32_t> found = download<int32_t>(indices, t * shape.k, shape.k);
    std::vector<double> sorted(scores.begin() + first, scores.end());
    std::nth_element(sorted.begin(), sorted.begin() + wanted - 1, sorted.end(), std::greater<>());
    const double kth = sorted[static_cast<size_t>(wanted - 1)], margin = band * std::max(1.0, std::abs(kth));
    std::vector<char> chosen(static_cast<size_t>(last));
    for (int64_t j = 0; j < wanted; ++j) {
      const int32_t s = found[static_cast<size_t>(j)];
      if (s < first || s >= last || chosen[static_cast<size_t>(s)]) return concat("WRONG: query ", t, " slot ", j, " is ", s);
      chosen[static_cast<size_t>(s)] = 1;
      if (scores[static_cast<size_t>(s)] < kth - margin) return concat("WRONG: query ", t, " key ", s, " scores ", scores[static_cast<size_t>(s)], " below ", kth);
    }
    for (int64_t s = first; s < last; ++s)
      if (!chosen[static_cast<size_t>(s)] && scores[static_cast<size_t>(s)] > kth + margin) return concat("WRONG: query ", t, " misses key ", s);
  }
  return "";
}

// With k keys at a time and k places, a state holds every score.
std::string TopKCase::check_against_own_scores(const Tensor& indices) const {
  constexpr int64_t kAtOnce = 4096;
  Memory m;
  const FlashTopKUpdate whole = update();
  FlashTopKState all = state(m, 1, kAtOnce);
  const Tensor workspace = m.make(DType::u8, {static_cast<int64_t>(flash_topk_update_workspace_bytes(all, whole))}, "workspace");
  for (const int64_t t : sampled_queries(shape)) {
    const int64_t first = download<int32_t>(begin, t, 1)[0], last = download<int32_t>(end, t, 1)[0], wanted = std::min(shape.k, last - first);
    std::vector<std::pair<float, int32_t>> order;
    for (int64_t from = first; from < last; from += kAtOnce) {
      const int64_t to = std::min(from + kAtOnce, last);
      const auto row = [&](const Tensor& x, int64_t low, int64_t high) { return x.defined() ? x.slice(0, low, high) : x; };
      FlashTopKUpdate u{row(whole.q, t, t + 1), row(weights, t, t + 1), row(whole.keys, from, to), from, row(begin, t, t + 1), row(end, t, t + 1), {}, {}, row(q_scales, t, t + 1), row(key_scales, from, to)};
      u.workspace = workspace;
      flash_topk_begin(all, {});
      flash_topk_update(all, u);
      const std::vector<float> scores = download<float>(all.scores, 0, to - from);
      const std::vector<int32_t> found = download<int32_t>(all.indices, 0, to - from);
      for (size_t i = 0; i < found.size(); ++i) order.emplace_back(-scores[i], found[i]);
    }
    std::sort(order.begin(), order.end());
    std::vector<int32_t> expected(static_cast<size_t>(wanted));
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = order[i].second;
    std::sort(expected.begin(), expected.end());
    if (download<int32_t>(indices, t * shape.k, wanted) != expected) return concat("WRONG: query ", t, " has other keys than a sort of its scores");
  }
  return "";
}

}  // namespace hyscale::bench
