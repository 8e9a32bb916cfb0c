// Keys are packed into blocks of kLanes columns, so that the scores of a block are computed side by side with one fixed
// order of operations per score: dimensions ascending, then heads ascending. Each query keeps a list of at most 2 k
// candidates; when it is full, a selection halves it and its worst survivor becomes the threshold to beat.
#include "kernels/flash_topk/flash_topk_ref.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "kernels/common/op.h"

namespace hyscale {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kHeadsAtOnce = 4;

struct Candidate {
  float score;
  int32_t index;
};
bool better(const Candidate& a, const Candidate& b) { return a.score > b.score || (a.score == b.score && a.index < b.index); }

int64_t num_blocks(int64_t num_keys) { return (num_keys + kLanes - 1) / kLanes; }

float value(const Tensor& x, int64_t i) { return x.dtype() == DType::f8e4m3 ? e4m3_to_float(x.data<uint8_t>()[i]) : x.f32()[i]; }

// The heads of a query; e4m3 as values in `memory`.
const float* heads_of(const FlashTopKUpdate& u, int64_t t, float* memory) {
  const int64_t heads = u.q.size(1), dims = u.q.size(2), first = t * heads * dims;
  if (u.q.dtype() == DType::f32) return u.q.f32() + first;
  for (int64_t i = 0; i < heads * dims; ++i) memory[i] = value(u.q, first + i) * u.q_scales.f32()[t * heads + i / dims];
  return memory;
}

// packed[block][d][lane]; lanes beyond the last key are zero.
void pack_keys(const FlashTopKUpdate& u, float* packed) {
  const int64_t num_keys = u.keys.size(0), dims = u.keys.size(1);
#pragma omp parallel for
  for (int64_t b = 0; b < num_blocks(num_keys); ++b)
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t key = b * kLanes + lane;
      const float scale = u.key_scales.defined() && key < num_keys ? u.key_scales.f32()[key] : 1;
      for (int64_t d = 0; d < dims; ++d) packed[(b * dims + d) * kLanes + lane] = key < num_keys ? value(u.keys, key * u.keys.stride(0) + d) * scale : 0;
    }
}

template <int64_t kHeads>
void add_heads(const float* q, const float* weights, const float* block, int64_t dims, float* scores) {
  float dots[kHeads][kLanes] = {};
  for (int64_t d = 0; d < dims; ++d)
    for (int64_t h = 0; h < kHeads; ++h)
#pragma omp simd
      for (int64_t lane = 0; lane < kLanes; ++lane) dots[h][lane] += q[h * dims + d] * block[d * kLanes + lane];
  for (int64_t h = 0; h < kHeads; ++h) {
    const float w = weights ? weights[h] : 1;
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) scores[lane] += w * (dots[h][lane] < 0 ? 0 : dots[h][lane]);  // keeps NaN
  }
}

void score_block(const float* q, const float* weights, const float* block, int64_t heads, int64_t dims, float* scores) {
  std::fill_n(scores, kLanes, 0.0f);
  int64_t h = 0;
  for (; h + kHeadsAtOnce <= heads; h += kHeadsAtOnce) add_heads<kHeadsAtOnce>(q + h * dims, weights ? weights + h : nullptr, block, dims, scores);
  for (; h < heads; ++h) add_heads<1>(q + h * dims, weights ? weights + h : nullptr, block, dims, scores);
}

// The candidates of one query.
class Candidates {
 public:
  Candidates(Candidate* memory, int64_t k) : items_(memory), k_(k) {}
  void load(const float* scores, const int32_t* indices, int32_t count) {
    size_ = count;
    full_ = false;
    for (int32_t i = 0; i < count; ++i) items_[i] = {scores[i], indices[i]};
    if (size_ == k_) compact();
  }
  void offer(float score, int64_t index) {
    const Candidate c{score, static_cast<int32_t>(index)};
    if (full_ && !better(c, worst_)) return;
    items_[size_++] = c;
    if (size_ == 2 * k_) compact();
  }
  int32_t store(float* scores, int32_t* indices) {
    if (size_ > k_) compact();
    for (int64_t i = 0; i < size_; ++i) scores[i] = items_[i].score, indices[i] = items_[i].index;
    return static_cast<int32_t>(size_);
  }

 private:
  void compact() {
    std::nth_element(items_, items_ + k_ - 1, items_ + size_, better);
    size_ = k_;
    worst_ = items_[k_ - 1];
    full_ = true;
  }
  Candidate* items_;
  int64_t k_, size_ = 0;
  Candidate worst_{};
  bool full_ = false;
};

}  // namespace

size_t flash_topk_update_ref_workspace_bytes(const FlashTopKState& s, const FlashTopKUpdate& u) {
  const size_t packed = static_cast<size_t>(num_blocks(u.keys.size(0)) * kLanes * u.keys.size(1)) * sizeof(float);
  const size_t threads = static_cast<size_t>(omp_get_max_threads());
  return aligned_bytes(packed) + aligned_bytes(threads * static_cast<size_t>(2 * s.k) * sizeof(Candidate)) + aligned_bytes(threads * static_cast<size_t>(u.q.size(1) * u.q.size(2)) * sizeof(float));
}

void flash_topk_update_ref(FlashTopKState& s, const FlashTopKUpdate& u) {
  const int64_t queries = u.q.size(0), heads = u.q.size(1), dims = u.q.size(2), num_keys = u.keys.size(0);
  Workspace workspace(u.workspace);
  float* packed = workspace.take<float>(num_blocks(num_keys) * kLanes * dims);
  Candidate* lists = workspace.take<Candidate>(omp_get_max_threads() * 2 * s.k);
  float* values = workspace.take<float>(omp_get_max_threads() * heads * dims);
  pack_keys(u, packed);
  int32_t nan_query = s.nan_query.i32()[0];
#pragma omp parallel for schedule(dynamic, 16) reduction(min : nan_query)
  for (int64_t t = 0; t < queries; ++t) {
    Candidates list(lists + omp_get_thread_num() * 2 * s.k, s.k);
    list.load(s.scores.f32() + t * s.k, s.indices.i32() + t * s.k, s.counts.i32()[t]);
    const int64_t first = std::max<int64_t>(u.begin.i32()[t] - u.first_key, 0);
    const int64_t last = std::min<int64_t>(u.end.i32()[t] - u.first_key, num_keys);
    const float* q = heads_of(u, t, values + omp_get_thread_num() * heads * dims);
    float scores[kLanes];
    for (int64_t b = first / kLanes; b * kLanes < last; ++b) {
      score_block(q, u.weights.defined() ? u.weights.f32() + t * heads : nullptr, packed + b * dims * kLanes, heads, dims, scores);
      for (int64_t lane = std::max<int64_t>(first - b * kLanes, 0); lane < std::min(kLanes, last - b * kLanes); ++lane) {
        if (std::isnan(scores[lane])) nan_query = std::min(nan_query, static_cast<int32_t>(t));
        list.offer(scores[lane], u.first_key + b * kLanes + lane);
      }
    }
    s.counts.i32()[t] = list.store(s.scores.f32() + t * s.k, s.indices.i32() + t * s.k);
  }
  s.nan_query.i32()[0] = nan_query;
}

void flash_topk_finish_ref(const FlashTopKState& s, const Selection& out) {
#pragma omp parallel for
  for (int64_t t = 0; t < s.counts.size(0); ++t) {
    const int32_t count = s.counts.i32()[t];
    int32_t* indices = out.indices.i32() + t * s.k;
    std::copy_n(s.indices.i32() + t * s.k, count, indices);
    std::sort(indices, indices + count);
    std::fill(indices + count, indices + s.k, -1);
    out.counts.i32()[t] = count;
  }
}

}  // namespace hyscale
