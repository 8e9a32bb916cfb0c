// FlashTopK against the way of today's systems: scores by cuBLAS in row chunks into a table, a head reduction, and an exact
// radix select over the table. Both are checked on sampled queries against f64: no key outside the rounding band of the k-th
// score may be in or out.
#include <algorithm>
#include <cmath>

#include "bench/bench.h"
#include "kernels/common/cuda.cuh"
#include "kernels/flash_topk/flash_topk.h"
#include "kernels/gemm/gemm.h"

namespace hyscale::bench {
namespace {

struct Shape3 {
  const char* name;
  int64_t queries, keys, heads, k;
  bool weighted;
  enum class Order { normal, rising } order = Order::normal;
  int64_t ratio = 1;  // tokens per key: above 1 every token of the sequence is a query and sees the keys behind it
};
constexpr int64_t kDims = 128;

// Queries are the last of the keys; causal.
__global__ void ranges_kernel(int32_t* begin, int32_t* end, int64_t queries, int64_t keys, bool causal, int64_t ratio) {
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; t < queries; t += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    begin[t] = 0;
    end[t] = static_cast<int32_t>(ratio > 1 ? (t + 1) / ratio : causal ? keys - queries + t + 1 : keys);
  }
}

// Rising scores: every query is all ones, key s holds s / keys in every dimension (as bf16 in steps), so later keys score higher.
__global__ void rising_kernel(bf16* q, int64_t q_count, bf16* keys, int64_t num_keys) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < q_count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) q[i] = __float2bfloat16(1);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < num_keys * kDims; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t s = i / kDims, d = i % kDims;
    // Digits of s in base 128 spread over three dimensions: the sum rises with s exactly.
    const int64_t digit = d == 0 ? s / 16384 : d == 1 ? s / 128 % 128 : d == 2 ? s % 128 : 0;
    keys[i] = __float2bfloat16(static_cast<float>(digit) * (d == 0 ? 16384.f : d == 1 ? 128.f : 1.f));
  }
}

// table[r, s] = sum_h w relu(scores[r, h, s]) for a chunk of rows.
__global__ void reduce_heads_kernel(const bf16* __restrict__ scores, const float* __restrict__ weights, float* __restrict__ table, int64_t heads, int64_t keys) {
  const int64_t r = blockIdx.y;
  for (int64_t s = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; s < keys; s += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    float sum = 0;
    for (int64_t h = 0; h < heads; ++h) sum += (weights ? weights[r * heads + h] : 1) * fmaxf(to_f32(scores[(r * heads + h) * keys + s]), 0.0f);
    table[r * keys + s] = sum;
  }
}

__device__ uint32_t ordered(float x) {
  const uint32_t u = __float_as_uint(x + 0.0f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// Radix select over one row of the table: three digits of 11, 11 and 10 bits, then the indices above the k-th and, in order,
// those equal to it.
__global__ void __launch_bounds__(1024) radix_select_kernel(const float* __restrict__ table, const int32_t* __restrict__ end, int32_t* __restrict__ out, int64_t keys, int k) {
  __shared__ uint32_t histogram[2048];
  __shared__ uint32_t prefix, need;
  __shared__ int above, equal;
  const int64_t r = blockIdx.x, visible = end[r];
  const float* row = table + r * keys;
  uint32_t known = 0, mask = 0;
  if (threadIdx.x == 0) need = static_cast<uint32_t>(min(static_cast<int64_t>(k), visible)), above = 0, equal = 0;
  for (const int shift : {21, 10, 0}) {
    const int bins = shift == 0 ? 1024 : 2048;
    for (int i = threadIdx.x; i < bins; i += blockDim.x) histogram[i] = 0;
    __syncthreads();
    for (int64_t s = threadIdx.x; s < visible; s += blockDim.x) {
      const uint32_t u = ordered(row[s]);
      if ((u & mask) == known) atomicAdd(&histogram[u >> shift & (bins - 1)], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t left = need;
      int bin = bins - 1;
      for (; bin > 0 && histogram[bin] < left; --bin) left -= histogram[bin];
      need = left;
      prefix = static_cast<uint32_t>(bin) << shift;
    }
    __syncthreads();
    known |= prefix;
    mask |= static_cast<uint32_t>(bins - 1) << shift;
    __syncthreads();
  }
  for (int64_t s = threadIdx.x; s < visible; s += blockDim.x) {
    const uint32_t u = ordered(row[s]);
    if (u > known) out[r * k + atomicAdd(&above, 1)] = static_cast<int32_t>(s);
  }
  __syncthreads();
  // Equal ones: enough of them, in no fixed order, as today's kernels do.
  for (int64_t s = threadIdx.x; s < visible; s += blockDim.x)
    if (ordered(row[s]) == known) {
      const int at = atomicAdd(&equal, 1);
      if (at < static_cast<int>(need)) out[r * k + above + at] = static_cast<int32_t>(s);
    }
}

struct Problem {
  Memory memory;
  Shape3 shape;
  Tensor q, keys, weights, begin, end;
  explicit Problem(const Shape3& s) : shape(s) {
    q = memory.normal({s.queries, s.heads, kDims}, 1);
    keys = memory.normal({s.keys, kDims}, 2);
    if (s.weighted) weights = memory.uniform({s.queries, s.heads}, 3, -0.05f, 0.15f);
    begin = memory.make(DType::i32, {s.queries}, "ranges");
    end = memory.make(DType::i32, {s.queries}, "ranges");
    ranges_kernel<<<256, 256>>>(begin.i32(), end.i32(), s.queries, s.keys, s.queries <= s.keys, s.ratio);
    if (s.order == Shape3::Order::rising) {
      rising_kernel<<<1024, 256>>>(q.data<bf16>(), q.elements(), keys.data<bf16>(), s.keys);
      weights = memory.uniform({s.queries, s.heads}, 3, 0.03f, 0.03f);
    }
    synchronize(kCuda, {});
  }
  double pairs() const {
    const double n = static_cast<double>(shape.keys), t = static_cast<double>(shape.queries);
    return shape.ratio > 1 ? t * n / 2 : t * (n - t) + t * (t + 1) / 2;
  }
  double tflop() const { return 2e-12 * pairs() * static_cast<double>(shape.heads * kDims); }
};

template <typename T>
std::vector<T> download(const Tensor& t, int64_t first, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  copy_bytes(host.data(), {}, t.data<T>() + first, kCuda, host.size() * sizeof(T), {});
  synchronize(kCuda, {});
  return host;
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

// band: how far f32 (or, for the table, bf16) scores may lie from f64.
std::string check(const Problem& p, const Tensor& indices, double band) {
  Memory memory;
  const Tensor exact = memory.make(DType::f64, {p.shape.keys}, "exact scores");
  for (const int64_t t : {int64_t{0}, int64_t{1}, p.shape.queries / 2 + 3, p.shape.queries - 1}) {
    const int64_t visible = download<int32_t>(p.end, t, 1)[0], wanted = std::min(p.shape.k, visible);
    if (wanted == 0) continue;
    exact_scores_kernel<<<1024, 256>>>(p.q.data<bf16>() + t * p.shape.heads * kDims, p.keys.data<bf16>(), p.weights.defined() ? p.weights.f32() + t * p.shape.heads : nullptr,
                                       exact.data<double>(), static_cast<int>(p.shape.heads), visible);
    const std::vector<double> scores = download<double>(exact, 0, visible);
    const std::vector<int32_t> found = download<int32_t>(indices, t * p.shape.k, p.shape.k);
    std::vector<double> sorted = scores;
    std::nth_element(sorted.begin(), sorted.begin() + wanted - 1, sorted.end(), std::greater<>());
    const double kth = sorted[static_cast<size_t>(wanted - 1)], margin = band * std::max(1.0, std::abs(kth));
    std::vector<char> chosen(static_cast<size_t>(visible));
    for (int64_t j = 0; j < wanted; ++j) {
      const int32_t s = found[static_cast<size_t>(j)];
      if (s < 0 || s >= visible || chosen[static_cast<size_t>(s)]) return concat("WRONG: query ", t, " slot ", j, " is ", s);
      chosen[static_cast<size_t>(s)] = 1;
      if (scores[static_cast<size_t>(s)] < kth - margin) return concat("WRONG: query ", t, " key ", s, " scores ", scores[static_cast<size_t>(s)], " below ", kth);
    }
    for (int64_t s = 0; s < visible; ++s)
      if (!chosen[static_cast<size_t>(s)] && scores[static_cast<size_t>(s)] > kth + margin) return concat("WRONG: query ", t, " misses key ", s);
  }
  return "exact within rounding";
}

Row flash(const Problem& p) {
  Memory memory;
  const Shape3& s = p.shape;
  const size_t before = allocated_bytes(kCuda);
  const Selection out{memory.make(DType::i32, {s.queries, s.k}, "selection"), memory.make(DType::i32, {s.queries}, "selection")};
  const size_t result = allocated_bytes(kCuda) - before;
  FlashTopKState state{s.k, memory.make(DType::f32, {s.queries, s.k}, "state"), memory.make(DType::i32, {s.queries, s.k}, "state"), memory.make(DType::i32, {s.queries}, "state"),
                       memory.make(DType::i32, {1}, "state")};
  FlashTopKUpdate u{p.q, p.weights, p.keys, 0, p.begin, p.end, {}, {}};
  u.workspace = memory.make(DType::u8, {static_cast<int64_t>(flash_topk_update_workspace_bytes(state, u))}, "workspace");
  const auto run = [&] {
    flash_topk_begin(state, {});
    flash_topk_update(state, u);
    flash_topk_finish(state, out, {});
  };
  Row r;
  r.name = concat(s.name, ": FlashTopK");
  r.ms = median_ms(run, p.tflop() < 500 ? 3 : 1);
  r.tflop = p.tflop();
  r.gigabytes = 1e-9 * static_cast<double>(p.q.bytes() + p.keys.bytes() + out.indices.bytes());
  r.extra_bytes = allocated_bytes(kCuda) - before - result;
  r.check = check(p, out.indices, 1e-4);
  r.gemm_rate = sustained_gemm_rate(r.ms);
  return r;
}

Row table(const Problem& p, int64_t rows) {
  Memory memory;
  const Shape3& s = p.shape;
  const size_t before = allocated_bytes(kCuda);
  TableSelect t{p.q, p.keys, p.weights, p.end, download<int32_t>(p.end, 0, s.queries), memory.make(DType::i32, {s.queries, s.k}, "selection"), rows, {}, {}, {}};
  const size_t result = allocated_bytes(kCuda) - before;
  make_table(t, memory);
  Row r;
  r.name = concat(s.name, ": table, ", rows, " rows at a time");
  r.ms = median_ms([&] { table_select(t); }, 1);
  r.tflop = p.tflop();
  r.gigabytes = 1e-9 * static_cast<double>(s.queries * s.keys) * (2.0 * 2 * static_cast<double>(s.heads) + 6 * 4);
  r.extra_bytes = allocated_bytes(kCuda) - before - result;
  r.check = check(p, t.indices, 3e-2);
  r.gemm_rate = sustained_gemm_rate(std::min(r.ms, 1000.0));
  return r;
}

}  // namespace

void make_table(TableSelect& t, Memory& memory) {
  const int64_t heads = t.q.size(1), keys = t.keys.size(0);
  t.scores = memory.make(DType::bf16, {t.rows * heads * keys}, "score table");
  t.reduced = memory.make(DType::f32, {t.rows * keys}, "score table");
  t.gemm_space = memory.make(DType::u8, {kGemmWorkspaceBytes}, "gemm workspace");
}

void table_select(const TableSelect& t) {
  const int64_t queries = t.q.size(0), heads = t.q.size(1), dims = t.q.size(2), k = t.indices.size(1);
  for (int64_t first = 0; first < queries; first += t.rows) {
    const int64_t n = std::min(t.rows, queries - first);
    const int64_t keys = *std::max_element(t.visible.begin() + first, t.visible.begin() + first + n);
    gemm({.a = t.q.view({queries * heads, dims}).slice(0, first * heads, (first + n) * heads), .b = t.keys.slice(0, 0, keys),
          .c = Tensor(t.scores.raw(), DType::bf16, kCuda, {n * heads, keys}), .transpose_b = true, .workspace = t.gemm_space});
    reduce_heads_kernel<<<dim3(static_cast<unsigned>(std::min<int64_t>(512, (keys + 255) / 256)), static_cast<unsigned>(n)), 256>>>(
        t.scores.data<bf16>(), t.weights.defined() ? t.weights.f32() + first * heads : nullptr, t.reduced.f32(), heads, keys);
    radix_select_kernel<<<static_cast<unsigned>(n), 1024>>>(t.reduced.f32(), t.end.i32() + first, t.indices.i32() + first * k, keys, static_cast<int>(k));
    check_launch("baseline");
  }
}

std::vector<Row> topk_benchmark(bool quick, const std::string& only) {
  const int64_t m = 1 << 20;
  using Order = Shape3::Order;
  const std::vector<Shape3> shapes = {
      {"GLM, last 8K of 1M keys", 8448, m, 32, 2048, true},        {"GLM, 1M keys, rising scores", 8448, m, 32, 2048, true, Order::rising},
      {"GLM, triangle 128K", 131072, 131072, 32, 2048, true},      {"GLM, triangle 64K", 65536, 65536, 32, 2048, true},
      {"GLM, triangle 16K", 16384, 16384, 32, 2048, true},         {"V4, last 8K of 262,144 entries", 8448, 262144, 64, 512, true},
      {"QSA, last 8K of 262,144 blocks", 8448, 262144, 4, 512, false}, {"GLM, odd: last 1,003 of 100,001 keys", 1003, 100001, 32, 2048, true},
      {"V4, whole: 1M tokens, 262,144 entries", m, 262144, 64, 512, true, Order::normal, 4}};
  std::vector<Row> rows;
  const auto left_out = [&](const Shape3& s) { return std::string(s.name).find(only) == std::string::npos; };
  for (const Shape3& s : shapes) {
    if (left_out(s)) continue;
    if (quick && s.queries * s.keys > (int64_t{1} << 30)) continue;
    const Problem p(s);
    rows.push_back(flash(p));
  }
  for (const auto& [s, chunk] : {std::pair{Shape3{"GLM, last 1K of 1M keys", 1024, m, 32, 2048, true}, 64}, {Shape3{"GLM, last 8K of 128K keys", 8192, 131072, 32, 2048, true}, 256}}) {
    if (quick || left_out(s)) continue;
    const Problem p(s);
    rows.push_back(flash(p));
    rows.push_back(table(p, chunk));
  }
  return rows;
}

}  // namespace hyscale::bench
