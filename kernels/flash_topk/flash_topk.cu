// FlashTopK on Hopper. Keys are the rows and 256 (query, head) pairs the columns of a matrix product, so the head sum is in
// the thread that holds the products plus an exchange in its quad. A producer warp feeds key tiles through TMA; two
// warpgroups take turns on the tensor cores, one scoring while the other adds up heads and appends candidates.
//
// Candidates of a query lie in a list of `list_capacity(k)` entries in global memory (it stays in L2). The first tiles are
// stored densely, by position; after that only what beats the threshold (the worst of the last selection) is appended.
// When lists may run full, one warp per query selects (select.cuh) and the threshold rises.
//
// The head sum has one fixed order: heads 2c, 2c+1, 8+2c, ... in lane c of a quad, then lanes (0+2)+(1+3) for 32 and 64
// heads, (0+1) for 4. So score bits depend on the rows of q, w and keys alone.
#include <cub/block/block_radix_sort.cuh>
#include <cuda.h>

#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"
#include "kernels/common/op.h"
#include "kernels/flash_topk/flash_topk_cuda.h"
#include "kernels/flash_topk/select.cuh"

namespace hyscale {

void flash_topk_update_plain_cuda(FlashTopKState&, const FlashTopKUpdate&, void* lists);

namespace {

using namespace hopper;
using topk::Candidate;
using topk::kColumns;
using topk::kKeyTile;

constexpr int kStages = 4;
constexpr int kThreads = 384;
constexpr int kSlackTiles = 8;  // lists with less room than this are selected from

template <int kHeads, int kDims>
struct __align__(1024) Shared {
  static constexpr int kQueries = kColumns / kHeads;
  bf16 q[kDims / 64][kColumns * 64];
  bf16 keys[kStages][kDims / 64][kKeyTile * 64];
  float weights[kQueries][4][kHeads / 4];  // [query][lane of a quad][its heads]
  float threshold[kQueries];
  int threshold_index[kQueries];
  int counts[kQueries], first_counts[kQueries];  // entries of each list; those from earlier updates
  int begin[kQueries], end[kQueries];            // visible keys, relative to the first of this update
  uint32_t histogram[8][256];
  uint64_t ranks[8][topk::kFewRanks];
  uint64_t full[kStages], empty[kStages], q_full;
  int64_t first_query;
  int task, low, high;
  int all_begin, all_end;  // keys that every query with keys sees
};

struct Problem {
  const float* weights;  // [T, H] or null
  const int32_t *begin, *end;
  int64_t queries, num_keys, first_key;
  int k, capacity;
  float* state_scores;
  int32_t *state_indices, *state_counts, *nan_query;
  Candidate* lists;  // [blocks][queries of a block][capacity]
  int32_t* next_task;
};

__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void load_box(void* to, const CUtensorMap* map, uint64_t* barrier, int column, int64_t row) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)), "l"(map),
               "r"(shared_address(barrier)), "r"(column), "r"(static_cast<int>(row))
               : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// max(x, 0) that keeps NaN.
__device__ __forceinline__ float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// Scores that a thread ends up with: kPerRow queries for each of its two rows.
template <int kHeads>
struct Layout {
  static constexpr int kQueries = kColumns / kHeads;
  static constexpr int kPerRow = kHeads >= 8 ? kQueries / 4 : 16;
  static __device__ __forceinline__ int query(int quad, int i) {
    if constexpr (kHeads >= 8) return (quad & 2 ? kQueries / 2 : 0) + (quad & 1 ? kQueries / 4 : 0) + i;
    return 2 * (16 * (quad & 1) + i) + (quad >> 1);
  }
};

// Adds `send` half of values to the lane across `mask` and keeps the other half.
template <int kCount>
__device__ __forceinline__ void exchange(const float (&in)[kCount], float (&out)[kCount / 2], bool upper, int mask) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float send = upper ? in[i] : in[i + kCount / 2], keep = upper ? in[i + kCount / 2] : in[i];
    out[i] = keep + __shfl_xor_sync(~0u, send, mask);
  }
}

// Head sums of one of the thread's two rows: d holds dot products, octets of columns in steps of four.
template <int kHeads, int kDims, bool kWeighted>
__device__ __forceinline__ void head_sums(const float (&d)[128], const Shared<kHeads, kDims>& s, int row, int quad, float (&scores)[Layout<kHeads>::kPerRow]) {
  constexpr int kQueries = Layout<kHeads>::kQueries;
  if constexpr (kHeads >= 8) {
    float sums[kQueries], half[kQueries / 2];
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kHeads / 8; ++j) {
        const int at = (q * (kHeads / 8) + j) * 4 + 2 * row;
        const float w0 = kWeighted ? s.weights[q][quad][2 * j] : 1, w1 = kWeighted ? s.weights[q][quad][2 * j + 1] : 1;
        sum = fmaf(relu(d[at]), w0, sum);
        sum = fmaf(relu(d[at + 1]), w1, sum);
      }
      sums[q] = sum;
    }
    exchange(sums, half, quad & 2, 2);
    exchange(half, scores, quad & 1, 1);
  } else {
    float sums[32];
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      sums[j] = relu(d[j * 4 + 2 * row]) + relu(d[j * 4 + 2 * row + 1]);
    }
    exchange(sums, scores, quad & 1, 1);
  }
}

// Entries of earlier updates into the list; a full state brings its threshold.
template <int kHeads, int kDims>
__device__ __forceinline__ void load_state(Candidate* list, const Problem& p, Shared<kHeads, kDims>& s, int query, int64_t t, int lane) {
  const int count = t < p.queries ? p.state_counts[t] : 0;
  uint64_t worst = ~uint64_t{0};
#pragma unroll 1
  for (int i = lane; i < count; i += 32) {
    const Candidate c{p.state_scores[t * p.k + i], p.state_indices[t * p.k + i]};
    topk::store_candidate(list + i, c);
    worst = min(worst, topk::rank_of(c));
  }
  worst = topk::warp_min(worst);
  if (lane != 0) return;
  s.counts[query] = s.first_counts[query] = count;
  s.threshold[query] = count == p.k ? topk::score_of(worst) : -INFINITY;
  s.threshold_index[query] = count == p.k ? topk::index_of(worst) : INT32_MAX;
}

// Cuts a list to its k best: in place, or, behind the last tile, into the state.
template <int kHeads, int kDims>
__device__ __forceinline__ void select(Candidate* list, const Problem& p, Shared<kHeads, kDims>& s, int query, int warp, int lane, bool last) {
  const int count = s.counts[query];
  if (count <= p.k && !last) return;
  const uint64_t kth = count > p.k ? topk::kth_rank(list, count, p.k, s.histogram[warp], s.ranks[warp], lane) : 0;
  const int64_t t = s.first_query + query;
  if (last && t >= p.queries) return;
  topk::for_each_best(list, count, kth, lane, [&](int at, Candidate c) {
    if (!last) return topk::store_candidate(list + at, c);
    p.state_scores[t * p.k + at] = c.score;
    p.state_indices[t * p.k + at] = c.index;
  });
  if (lane != 0) return;
  if (last) {
    p.state_counts[t] = min(count, p.k);
    return;
  }
  s.counts[query] = p.k;
  s.threshold[query] = topk::score_of(kth);
  s.threshold_index[query] = topk::index_of(kth);
}

template <int kHeads, int kDims>
__device__ __forceinline__ int longest_list(const Shared<kHeads, kDims>& s) {
  int most = 0;
  for (int q = 0; q < kColumns / kHeads; ++q) most = max(most, s.counts[q]);
  return most;
}

// What the two scoring warpgroups do with one task of queries.
template <int kHeads, int kDims, bool kWeighted>
class Scorer {
 public:
  using SharedMemory = Shared<kHeads, kDims>;
  static constexpr int kQueries = kColumns / kHeads, kPerRow = Layout<kHeads>::kPerRow;

  __device__ Scorer(SharedMemory& s, const Problem& p) : s_(s), p_(p) {}

  // tiles of the task; `stage_base` counts stages over all tasks. Returns with the lists stored as state.
  __device__ __forceinline__ void run(int first_tile, int num_tiles, uint32_t stage_base, int q_parity) {
#pragma unroll 1
    for (int q = warp(); q < kQueries; q += 8) load_state(list(q), p_, s_, q, s_.first_query + q, lane());
    named_sync(3, 256);
    const int dense_tiles = tiles_that_fit(first_tile);
    int check_at = dense_tiles;  // tile before which lists are looked at
    barrier_wait(&s_.q_full, q_parity);
    if (group() == 1) named_arrive(1, 256);
    // One look at the lists per turn that needs one, the last of them behind the last tile: the selection's code exists once.
#pragma unroll 1
    for (int i = 0; i <= num_tiles; ++i) {
      if (i == check_at || i == num_tiles) check_at = i + make_room(i == dense_tiles || (i == num_tiles && i < dense_tiles), i == num_tiles, first_tile + i);
      if (i == num_tiles) break;
      float d[128];
      score_tile(d, stage_base + i);
      take_scores(d, (first_tile + i) * kKeyTile, i < dense_tiles);
    }
    if (group() == 0) named_sync(1, 256);
  }

 private:
  // Tiles that every list can store by position.
  __device__ __forceinline__ int tiles_that_fit(int first_tile) const {
    int fit = INT32_MAX;
    for (int q = 0; q < kQueries; ++q) {
      if (s_.begin[q] >= s_.end[q]) continue;
      const int room = p_.capacity - s_.first_counts[q] + s_.begin[q];  // first key that does not fit
      fit = min(fit, room / kKeyTile - first_tile);
    }
    return fit;
  }
  __device__ __forceinline__ void set_dense_counts(int end_tile) {
    for (int q = threadIdx.x - 128; q < kQueries; q += 256)
      s_.counts[q] = s_.first_counts[q] + max(0, min(s_.end[q], end_tile * kKeyTile) - s_.begin[q]);
    named_sync(3, 256);
  }
  // Selects where lists may run full, or for good behind the last tile; returns the tiles until the next look.
  __device__ __forceinline__ int make_room(bool after_dense, bool last, int tile) {
    named_sync(3, 256);
    if (after_dense) set_dense_counts(tile);
    int most = longest_list(s_);
    named_sync(3, 256);  // everyone has looked before anyone shortens a list
    // After the dense part every full list gets its first threshold.
    if (after_dense || last || p_.capacity - most < kSlackTiles * kKeyTile) {
      __threadfence_block();
#pragma unroll 1
      for (int q = warp(); q < kQueries; q += 8) select(list(q), p_, s_, q, warp(), lane(), last);
      named_sync(3, 256);
      most = longest_list(s_);
    }
    named_sync(3, 256);  // and before anyone appends
    return (p_.capacity - most) / kKeyTile;
  }
  __device__ __forceinline__ void score_tile(float (&d)[128], uint32_t stage_number) {
    const int stage = static_cast<int>(stage_number % kStages);
    barrier_wait(&s_.full[stage], static_cast<int>(stage_number / kStages & 1));
    named_sync(1 + group(), 256);  // this group's turn
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kDims / 16; ++step) {
      const uint64_t a = row_descriptor(shared_address(s_.keys[stage][step / 4]) + group() * kTileBytes) + step % 4 * 2;
      const uint64_t b = row_descriptor(shared_address(s_.q[step / 4])) + step % 4 * 2;
      if (step == 0)
        wgmma_n256_first(d, a, b);
      else
        wgmma_n256<0, 0>(d, a, b, 1);
    }
    wgmma_commit();
    named_arrive(1 + (1 - group()), 256);
    wgmma_wait<0>();
    pin(d);
    if (threadIdx.x % 128 == 0) barrier_arrive(&s_.empty[stage]);
  }
  __device__ __forceinline__ void take_scores(const float (&d)[128], int first_key, bool dense) {
    // All sums first: the products' registers are free before the branches begin.
    float scores[2][Layout<kHeads>::kPerRow];
#pragma unroll
    for (int r = 0; r < 2; ++r) head_sums<kHeads, kDims, kWeighted>(d, s_, r, quad(), scores[r]);
    const int key = first_key + row();
    const bool checked = first_key < s_.all_begin || first_key + kKeyTile > s_.all_end;
    dense ? store_dense(scores, key, checked) : store_better(scores, key, checked);
  }
  __device__ __forceinline__ bool visible(int q, int key) const { return key >= s_.begin[q] && key < s_.end[q]; }
  // NaN is told and becomes a score that nothing prefers.
  __device__ __forceinline__ bool tell_nan(int q, float score) const {
    if (score == score) return false;
    atomicMin(p_.nan_query, static_cast<int32_t>(s_.first_query + q));
    return true;
  }
  // By position, while every list has room for all keys.
  __device__ __forceinline__ void store_dense(const float (&scores)[2][kPerRow], int key, bool checked) {
#pragma unroll
    for (int i = 0; i < kPerRow; ++i) {
      const int q = Layout<kHeads>::query(quad(), i);
      Candidate* to = list(q) + s_.first_counts[q] - s_.begin[q] + key;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (checked && !visible(q, key + 8 * r)) continue;
        const float score = tell_nan(q, scores[r][i]) ? -INFINITY : scores[r][i];
        topk::store_candidate(to + 8 * r, {score + 0.0f, static_cast<int32_t>(p_.first_key) + key + 8 * r});
      }
    }
  }
  // What beats the threshold. The two rows of a query take their places with one addition, and the additions of several
  // queries are under way together: one after the other they would outlast the tensor cores.
  __device__ __forceinline__ void store_better(const float (&scores)[2][kPerRow], int key, bool checked) {
    constexpr int kTogether = kPerRow < 4 ? kPerRow : 4;
    float thresholds[kPerRow];
#pragma unroll
    for (int i = 0; i < kPerRow; ++i) thresholds[i] = s_.threshold[Layout<kHeads>::query(quad(), i)];
#pragma unroll
    for (int first = 0; first < kPerRow; first += kTogether) {
      bool take[kTogether][2], any = false;
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) any |= take[i][r] = !(scores[r][first + i] < thresholds[first + i]);
      if (!any) continue;
      int places[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int q = Layout<kHeads>::query(quad(), first + i);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (!take[i][r]) continue;
          const float score = scores[r][first + i];
          // Ties go to the lower index.
          take[i][r] = (!checked || visible(q, key + 8 * r)) && !tell_nan(q, score) &&
                       (score > thresholds[first + i] || static_cast<int32_t>(p_.first_key) + key + 8 * r < s_.threshold_index[q]);
        }
        const int count = take[i][0] + take[i][1];
        places[i] = count > 0 ? atomicAdd(&s_.counts[q], count) : 0;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        Candidate* to = list(Layout<kHeads>::query(quad(), first + i)) + places[i];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (take[i][r]) topk::store_candidate(to + (r == 1 && take[i][0]), {scores[r][first + i] + 0.0f, static_cast<int32_t>(p_.first_key) + key + 8 * r});
      }
    }
  }
  // Places of a thread are computed where they are used: the products leave few registers for what would be kept.
  static __device__ __forceinline__ int group() { return threadIdx.x / 128 - 1; }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 - 4; }
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int quad() { return threadIdx.x % 4; }
  static __device__ __forceinline__ int row() { return (threadIdx.x - 128) / 32 * 16 + threadIdx.x % 32 / 4; }
  __device__ __forceinline__ Candidate* list(int q) const { return p_.lists + (static_cast<int64_t>(blockIdx.x) * kQueries + q) * p_.capacity; }

  SharedMemory& s_;
  const Problem& p_;
};

// Visible ranges and weights of a task's queries. All threads; ends with a barrier of the block.
template <int kHeads, int kDims, bool kWeighted>
__device__ void load_queries(Shared<kHeads, kDims>& s, const Problem& p, int64_t first_query) {
  constexpr int kQueries = kColumns / kHeads;
  if (threadIdx.x == 0) s.low = s.all_end = INT32_MAX, s.high = s.all_begin = 0, s.first_query = first_query;
  __syncthreads();
  for (int q = threadIdx.x; q < kQueries; q += kThreads) {
    const int64_t t = first_query + q;
    const int64_t begin = t < p.queries ? max(p.begin[t] - p.first_key, int64_t{0}) : 0, end = t < p.queries ? min(p.end[t] - p.first_key, p.num_keys) : 0;
    s.begin[q] = static_cast<int>(begin < end ? begin : 0);
    s.end[q] = static_cast<int>(begin < end ? end : 0);
    if (begin < end) {
      atomicMin(&s.low, static_cast<int>(begin));
      atomicMax(&s.high, static_cast<int>(end));
      atomicMax(&s.all_begin, static_cast<int>(begin));
      atomicMin(&s.all_end, static_cast<int>(end));
    } else {
      atomicMin(&s.all_end, 0);  // a query without keys: no tile is free of checks
    }
  }
  if constexpr (kWeighted)
    for (int i = threadIdx.x; i < kColumns; i += kThreads) {
      const int q = i / kHeads, h = i % kHeads;
      const int64_t t = first_query + q;
      s.weights[q][h % 8 / 2][h / 8 * 2 + h % 2] = t < p.queries ? p.weights[t * kHeads + h] : 0;
    }
  __syncthreads();
}

template <int kHeads, int kDims, bool kWeighted>
__global__ void __launch_bounds__(kThreads, 1) flash_topk_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap key_map, const __grid_constant__ Problem p) {
  constexpr int kQueries = kColumns / kHeads;
  extern __shared__ __align__(1024) char raw[];
  auto& s = *reinterpret_cast<Shared<kHeads, kDims>*>(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(&s.full[i], 1), barrier_init(&s.empty[i], 2);
    barrier_init(&s.q_full, 1);
    fence_to_async();
  }
  uint32_t stage_base = 0;  // tiles of all tasks so far; only its remainders matter, so it may wrap
  int q_parity = 0;
  while (true) {
    if (threadIdx.x == 0) s.task = atomicAdd(p.next_task, 1);
    __syncthreads();
    const int64_t tasks = (p.queries + kQueries - 1) / kQueries;
    if (s.task >= tasks) break;
    load_queries<kHeads, kDims, kWeighted>(s, p, (tasks - 1 - s.task) * kQueries);  // late queries see most keys: the longest tasks first
    const int first_tile = s.low / kKeyTile, num_tiles = s.high > 0 ? (s.high + kKeyTile - 1) / kKeyTile - first_tile : 0;
    if (num_tiles == 0) continue;  // the state stays as it is
    if (threadIdx.x < 128) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
      if (threadIdx.x == 0) {
        barrier_expect(&s.q_full, kColumns * kDims * 2);
        for (int half = 0; half < kDims / 64; ++half) load_box(s.q[half], &q_map, &s.q_full, half * 64, s.first_query * kHeads);
        for (int i = 0; i < num_tiles; ++i) {
          const uint32_t number = stage_base + i;
          const int stage = static_cast<int>(number % kStages);
          if (number >= kStages) barrier_wait(&s.empty[stage], static_cast<int>((number / kStages - 1) & 1));
          barrier_expect(&s.full[stage], kKeyTile * kDims * 2);
          for (int half = 0; half < kDims / 64; ++half) load_box(s.keys[stage][half], &key_map, &s.full[stage], half * 64, static_cast<int64_t>(first_tile + i) * kKeyTile);
        }
      }
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
      Scorer<kHeads, kDims, kWeighted>(s, p).run(first_tile, num_tiles, stage_base, q_parity);
    }
    stage_base += static_cast<uint32_t>(num_tiles);
    q_parity ^= 1;
    __syncthreads();
  }
}

__global__ void begin_kernel(int32_t* counts, int64_t queries, int32_t* nan_query) {
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; t < queries; t += static_cast<int64_t>(gridDim.x) * blockDim.x) counts[t] = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) *nan_query = static_cast<int32_t>(queries);
}

// Sorts the indices of one query; what is beyond its count becomes -1.
template <int kThreadsPerQuery, int kItems>
__global__ void __launch_bounds__(kThreadsPerQuery) finish_kernel(const int32_t* __restrict__ indices, const int32_t* __restrict__ counts, int32_t* __restrict__ out,
                                                                  int32_t* __restrict__ out_counts, int k) {
  using Sort = cub::BlockRadixSort<uint32_t, kThreadsPerQuery, kItems>;
  __shared__ typename Sort::TempStorage storage;
  const int64_t t = blockIdx.x;
  const int count = counts[t];
  uint32_t items[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = threadIdx.x * kItems + i;
    items[i] = at < count ? static_cast<uint32_t>(indices[t * k + at]) : ~0u;  // the last after sorting, and -1
  }
  Sort(storage).SortBlockedToStriped(items);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = i * kThreadsPerQuery + threadIdx.x;
    if (at < k) out[t * k + at] = static_cast<int32_t>(items[i]);
  }
  if (threadIdx.x == 0) out_counts[t] = count;
}

CUtensorMap make_map(const void* base, int64_t rows, int64_t row_bytes, int dims, int box_rows) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result), "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(dims), static_cast<cuuint64_t>(rows)}, steps[1] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)}, unit[2] = {1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(base), sizes, steps, box, unit, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HYSCALE_CHECK(result == CUDA_SUCCESS, "tensor map of ", rows, " rows of ", row_bytes, " bytes at ", base, ": error ", static_cast<int>(result));
  return map;
}

int num_blocks() {
  int device = 0, processors = 0;
  check_cuda(cudaGetDevice(&device), "flash_topk");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "flash_topk");
  return std::min(processors, topk::kMostBlocks);
}

template <int kHeads, int kDims, bool kWeighted>
void launch(const FlashTopKUpdate& u, Problem p) {
  using SharedMemory = Shared<kHeads, kDims>;
  const auto kernel = flash_topk_kernel<kHeads, kDims, kWeighted>;
  constexpr int kBytes = sizeof(SharedMemory);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "flash_topk");
  const CUtensorMap q_map = make_map(u.q.raw(), p.queries * kHeads, kDims * 2, kDims, kColumns);
  const CUtensorMap key_map = make_map(u.keys.raw(), p.num_keys, u.keys.stride(0) * 2, kDims, kKeyTile);
  const int64_t tasks = (p.queries + kColumns / kHeads - 1) / (kColumns / kHeads);
  kernel<<<static_cast<unsigned>(std::min<int64_t>(num_blocks(), tasks)), kThreads, kBytes, stream_of(u.stream)>>>(q_map, key_map, p);
  check_launch("flash_topk");
}

template <int kHeads, int kDims>
void launch_weighted(const FlashTopKUpdate& u, const Problem& p) {
  if constexpr (kHeads >= 8)
    u.weights.defined() ? launch<kHeads, kDims, true>(u, p) : launch<kHeads, kDims, false>(u, p);
  else
    launch<kHeads, kDims, false>(u, p);
}

void launch_shape(const FlashTopKUpdate& u, const Problem& p) {
  const int64_t heads = u.q.size(1), dims = u.q.size(2);
  if (dims == 128 && heads == 32) return launch_weighted<32, 128>(u, p);
  if (dims == 128 && heads == 64) return launch_weighted<64, 128>(u, p);
  if (dims == 128 && heads == 4) return launch_weighted<4, 128>(u, p);
  if (dims == 64 && heads == 32) return launch_weighted<32, 64>(u, p);
  if (dims == 64 && heads == 64) return launch_weighted<64, 64>(u, p);
  if (dims == 64 && heads == 4) return launch_weighted<4, 64>(u, p);
  throw InternalError(concat("flash_topk has no tensor-core form for ", heads, " heads of ", dims));
}

}  // namespace

void flash_topk_begin_cuda(FlashTopKState& s, Stream stream) {
  HYSCALE_CHECK(s.k <= 4096, "k is ", s.k, ", at most 4096 on CUDA");
  const int64_t queries = s.counts.size(0);
  begin_kernel<<<grid_for(queries, 256), 256, 0, stream_of(stream)>>>(s.counts.i32(), queries, s.nan_query.i32());
  check_launch("flash_topk begin");
}

void flash_topk_update_cuda(FlashTopKState& s, const FlashTopKUpdate& u) {
  HYSCALE_CHECK(u.q.dtype() == DType::bf16, "q is ", to_string(u.q), "; expected bf16");
  HYSCALE_CHECK(s.k <= 4096, "k is ", s.k, ", at most 4096 on CUDA");
  Workspace workspace(u.workspace);
  Problem p{};
  p.weights = u.weights.defined() ? u.weights.f32() : nullptr;
  p.begin = u.begin.i32();
  p.end = u.end.i32();
  p.queries = u.q.size(0);
  p.num_keys = u.keys.size(0);
  p.first_key = u.first_key;
  p.k = static_cast<int>(s.k);
  p.capacity = topk::list_capacity(s.k);
  p.state_scores = s.scores.f32();
  p.state_indices = s.indices.i32();
  p.state_counts = s.counts.i32();
  p.nan_query = s.nan_query.i32();
  p.next_task = workspace.take<int32_t>(1);
  p.lists = workspace.take<Candidate>(topk::num_lists(u) * p.capacity);
  if (!topk::has_tensor_core_form(u)) return flash_topk_update_plain_cuda(s, u, p.lists);
  HYSCALE_CHECK(u.keys.stride(0) % 8 == 0 && reinterpret_cast<uintptr_t>(u.keys.raw()) % 16 == 0, "keys ", to_string(u.keys), " with rows of ", u.keys.stride(0),
                " elements: rows start at multiples of 16 bytes");
  check_cuda(cudaMemsetAsync(p.next_task, 0, sizeof(int32_t), stream_of(u.stream)), "flash_topk");
  launch_shape(u, p);
}

void flash_topk_finish_cuda(const FlashTopKState& s, const Selection& out, Stream stream) {
  const int64_t queries = s.counts.size(0);
  const int k = static_cast<int>(s.k);
  if (queries == 0) return;
  const auto launch_sort = [&](auto kernel, int threads) {
    kernel<<<static_cast<unsigned>(queries), threads, 0, stream_of(stream)>>>(s.indices.i32(), s.counts.i32(), out.indices.i32(), out.counts.i32(), k);
  };
  if (k <= 256) launch_sort(finish_kernel<64, 4>, 64);
  else if (k <= 512) launch_sort(finish_kernel<64, 8>, 64);
  else if (k <= 1024) launch_sort(finish_kernel<128, 8>, 128);
  else if (k <= 2048) launch_sort(finish_kernel<128, 16>, 128);
  else launch_sort(finish_kernel<256, 16>, 256);
  check_launch("flash_topk finish");
}

}  // namespace hyscale
