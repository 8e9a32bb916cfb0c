#include "models/selection_health.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/flash_topk/flash_topk.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace hyscale {
namespace {

constexpr int64_t kRecall = 0, kNeighbours = 1, kBelow = 2, kTied = 3, kQueries = 4, kSums = 5;
constexpr int64_t kChunk = 8192;  // keys of a row of dense attention: long sequences become many rows that run side by side

template <typename T>
std::vector<T> on_host(const Context& ctx, const Tensor& t) {
  std::vector<T> values(static_cast<size_t>(t.elements()));
  copy_bytes(values.data(), Device{}, t.raw(), t.device(), t.bytes(), ctx.stream);
  synchronize(ctx.device, ctx.stream);
  return values;
}

Tensor on_device(Context& ctx, DType dtype, Shape shape, const void* values) {
  const Tensor t = ctx.scratch->allocate(dtype, shape);
  copy_bytes(t.raw(), t.device(), values, Device{}, t.bytes(), ctx.stream);
  synchronize(ctx.device, ctx.stream);  // the values are the caller's
  return t;
}

double shared(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  std::vector<int32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(std::max<size_t>(1, a.size()));
}

}  // namespace

SelectionHealth::SelectionHealth(int num_slots, int64_t queries) : num_queries_(queries), sums_(static_cast<size_t>(num_slots * kSums)) {}

void SelectionHealth::begin() {
  std::fill(sums_.begin(), sums_.end(), 0.0);
  drawn_ = false;
  previous_.clear();
}

void SelectionHealth::draw(Context& ctx, const Layer& l) {
  drawn_ = true;
  queries_.clear();
  if (ctx.device.is_meta()) return;
  const std::vector<int32_t> begin = on_host<int32_t>(ctx, l.key_begin), end = on_host<int32_t>(ctx, l.key_end);
  std::vector<Query> choices;
  for (size_t t = 0; t + 1 < begin.size(); ++t) {
    const int32_t grows = end[t + 1] - end[t];  // by one key at most, or the next local token is of another segment
    if (end[t] - begin[t] > l.k && begin[t + 1] == begin[t] && (grows == 0 || grows == 1)) choices.push_back({static_cast<int64_t>(t), begin[t], end[t], end[t + 1]});
  }
  const int64_t count = static_cast<int64_t>(choices.size()), taken = std::min(count, num_queries_);
  for (int64_t i = 0; i < taken; ++i) queries_.push_back(choices[static_cast<size_t>((2 * i + 1) * count / (2 * taken))]);
}

// One best key more than k, so that a tie at the k-th shows.
SelectionHealth::Selected SelectionHealth::select(Context& ctx, const Layer& l) const {
  const ArenaScope scope(*ctx.scratch);
  const int64_t rows = 2 * num_queries_, k = l.k + 1, used = static_cast<int64_t>(queries_.size());
  const Tensor q = ctx.scratch->allocate(l.index_q.dtype(), {rows, l.index_q.size(1), l.index_q.size(2)}), weights = ctx.scratch->allocate(DType::f32, {rows, l.index_q.size(1)});
  std::vector<int32_t> key_begin(static_cast<size_t>(rows)), key_end(key_begin.size());  // rows beyond the sample see nothing
  zero(q, ctx.stream);
  zero(weights, ctx.stream);
  for (int64_t i = 0; i < used; ++i) {
    const Query& sample = queries_[static_cast<size_t>(i)];
    copy(q.slice(0, 2 * i, 2 * i + 2), l.index_q.slice(0, sample.at, sample.at + 2), ctx.stream);
    copy(weights.slice(0, 2 * i, 2 * i + 2), l.index_weights.slice(0, sample.at, sample.at + 2), ctx.stream);
    for (int64_t j = 0; j < 2; ++j) {
      key_begin[static_cast<size_t>(2 * i + j)] = static_cast<int32_t>(sample.key_begin);
      key_end[static_cast<size_t>(2 * i + j)] = static_cast<int32_t>(j ? sample.neighbour_end : sample.key_end);
    }
  }
  FlashTopKState state{k, ctx.scratch->allocate(DType::f32, {rows, k}), ctx.scratch->allocate(DType::i32, {rows, k}), ctx.scratch->allocate(DType::i32, {rows}),
                       ctx.scratch->allocate(DType::i32, {1})};
  FlashTopKUpdate update{q, weights, l.index_keys, 0, on_device(ctx, DType::i32, {rows}, key_begin.data()), on_device(ctx, DType::i32, {rows}, key_end.data()), {}, ctx.stream};
  update.workspace = workspace(ctx, flash_topk_update_workspace_bytes(state, update));
  flash_topk_begin(state, ctx.stream);
  flash_topk_update(state, update);
  Selected out;
  if (used == 0) return out;
  const std::vector<float> scores = on_host<float>(ctx, state.scores);
  const std::vector<int32_t> indices = on_host<int32_t>(ctx, state.indices);
  for (int64_t row = 0; row < 2 * used; ++row) {
    std::vector<size_t> order(static_cast<size_t>(k));
    std::iota(order.begin(), order.end(), static_cast<size_t>(row * k));
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b] || (scores[a] == scores[b] && indices[a] < indices[b]); });
    const size_t last = order.size() - 1;
    if (row % 2 == 0) out.tied += scores[order[last - 1]] == scores[order[last]];
    Keys keys(last);
    for (size_t i = 0; i < last; ++i) keys[i] = indices[order[i]];
    std::sort(keys.begin(), keys.end());
    (row % 2 == 0 ? out.of_query : out.of_neighbour).push_back(std::move(keys));
  }
  return out;
}

// Row 0 attends to the selection, the others to all visible keys, a chunk each: the log sums of the chunks add up.
double SelectionHealth::recall(Context& ctx, const Layer& l, const Query& sample, const Keys& selected) const {
  const ArenaScope scope(*ctx.scratch);
  const int64_t heads = l.q.size(1), width = l.q.size(2), all_keys = l.kv.size(0), chunk = std::min(kChunk, all_keys), k = std::max(chunk, l.k);
  const int64_t rows = 1 + (all_keys + chunk - 1) / chunk;
  std::vector<int32_t> indices(static_cast<size_t>(rows * k), -1), counts(static_cast<size_t>(rows));
  std::copy(selected.begin(), selected.end(), indices.begin());
  counts[0] = static_cast<int32_t>(selected.size());
  for (int64_t key = sample.key_begin, row = 1; key < sample.key_end; key += chunk, ++row) {
    counts[static_cast<size_t>(row)] = static_cast<int32_t>(std::min(chunk, sample.key_end - key));
    std::iota(indices.begin() + row * k, indices.begin() + row * k + counts[static_cast<size_t>(row)], static_cast<int32_t>(key));
  }
  const Tensor q = ctx.scratch->allocate(l.q.dtype(), {rows, heads, width});
  for (int64_t row = 0; row < rows; ++row) copy(q.select(0, row), l.q.select(0, sample.at), ctx.stream);
  SparseAttentionForward a{q, l.kv, {on_device(ctx, DType::i32, {rows, k}, indices.data()), on_device(ctx, DType::i32, {rows}, counts.data())}, l.scale,
                           ctx.scratch->allocate(l.q.dtype(), {rows, heads, l.value_width}), ctx.scratch->allocate(DType::f32, {rows, heads}), {}, ctx.stream};
  a.workspace = workspace(ctx, sparse_attention_forward_workspace_bytes(a));
  sparse_attention_forward(a);
  if (ctx.device.is_meta()) return 0;
  const std::vector<float> lse = on_host<float>(ctx, a.lse);
  double mass = 0;
  for (int64_t h = 0; h < heads; ++h) {
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t row = 1; row < rows; ++row) top = std::max(top, static_cast<double>(lse[static_cast<size_t>(row * heads + h)]));
    for (int64_t row = 1; row < rows; ++row) sum += std::exp(static_cast<double>(lse[static_cast<size_t>(row * heads + h)]) - top);
    mass += std::exp(static_cast<double>(lse[static_cast<size_t>(h)]) - top) / sum;
  }
  return mass / static_cast<double>(heads);
}

void SelectionHealth::observe(Context& ctx, const Layer& l) {
  if (l.kv.size(0) == 0) return;
  if (!drawn_) draw(ctx, l);
  if (ctx.device.is_meta()) {
    select(ctx, l);
    recall(ctx, l, {}, {});
  }
  if (queries_.empty()) return;
  Selected selected = select(ctx, l);
  double* sums = sums_.data() + l.slot * kSums;
  for (size_t i = 0; i < queries_.size(); ++i) {
    sums[kRecall] += recall(ctx, l, queries_[i], selected.of_query[i]);
    sums[kNeighbours] += shared(selected.of_query[i], selected.of_neighbour[i]);
    if (!previous_.empty()) sums[kBelow] += shared(selected.of_query[i], previous_[i]);
  }
  if (previous_.empty()) sums[kBelow] = std::numeric_limits<double>::quiet_NaN();
  sums[kTied] += static_cast<double>(selected.tied);
  sums[kQueries] += static_cast<double>(queries_.size());
  previous_ = std::move(selected.of_query);
}

std::vector<SelectionHealth::Means> SelectionHealth::means() const {
  std::vector<Means> out;
  for (size_t at = 0; at < sums_.size(); at += kSums) {
    const double* s = sums_.data() + at;
    const double n = s[kQueries];
    out.push_back({static_cast<int64_t>(n), s[kRecall] / n, s[kNeighbours] / n, s[kBelow] / n, s[kTied] / n});
  }
  return out;
}

}  // namespace hyscale
