// FlashTopK against the way of today's systems: scores by cuBLAS in row chunks into a table, a head reduction, and an exact
// radix select over the table. Both are checked on sampled queries against f64: no key outside the rounding band of the k-th
// score may be in or out; FlashTopK also against a sort of its own scores.
#include <algorithm>
#include <cmath>

#include "bench/topk_case.h"
#include "kernels/common/cuda.cuh"
#include "kernels/gemm/gemm.h"

namespace hyscale::bench {
namespace {

// Sums of e4m3 products keep 13 bits below the largest term of a step of 32 dimensions.
constexpr double kBandOfE4m3 = 1e-3;

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

Row flash(const TopKCase& c) {
  Memory memory;
  const TopKShape& s = c.shape;
  const size_t before = allocated_bytes(kCuda);
  const Selection out{memory.make(DType::i32, {s.queries, s.k}, "selection"), memory.make(DType::i32, {s.queries}, "selection")};
  const size_t result = allocated_bytes(kCuda) - before;
  FlashTopKState state = c.state(memory, s.queries, s.k);
  FlashTopKUpdate u = c.update();
  u.workspace = memory.make(DType::u8, {static_cast<int64_t>(flash_topk_update_workspace_bytes(state, u))}, "workspace");
  const auto run = [&] {
    c.quantize();
    flash_topk_begin(state, {});
    flash_topk_update(state, u);
    flash_topk_finish(state, out, {});
  };
  Row r;
  r.name = concat(s.name, ": FlashTopK");
  r.ms = median_ms(run, c.tflop() < 500 ? 3 : 1);
  r.tflop = c.tflop();
  r.gigabytes = 1e-9 * static_cast<double>(u.q.bytes() + u.keys.bytes() + out.indices.bytes());
  r.extra_bytes = allocated_bytes(kCuda) - before - result;
  r.check = c.check_against_own_scores(out.indices);
  if (r.check.empty()) r.check = c.check_against_f64(out.indices, s.e4m3 ? kBandOfE4m3 : 1e-4);
  if (r.check.empty()) r.check = "exact";
  r.gemm_rate = sustained_gemm_rate(r.ms);
  return r;
}

Row table(const TopKCase& p, int64_t rows) {
  Memory memory;
  const TopKShape& s = p.shape;
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
  r.check = p.check_against_f64(t.indices, 3e-2);
  if (r.check.empty()) r.check = "exact within rounding";
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

std::vector<Row> topk_benchmark(bool quick, bool kinds, const std::string& only) {
  const int64_t m = 1 << 20;
  using Kind = TopKShape::Kind;
  const std::vector<TopKShape> usual = {
      {"GLM, last 8K of 1M keys", 8448, m, 32, 2048, true},
      {"GLM, e4m3, last 8K of 1M keys", 8448, m, 32, 2048, true, Kind::normal, true},
      {"GLM, 1M keys, rising scores", 8448, m, 32, 2048, true, Kind::rising},
      {"GLM, triangle 128K", 131072, 131072, 32, 2048, true},
      {"GLM, e4m3, triangle 128K", 131072, 131072, 32, 2048, true, Kind::normal, true},
      {"GLM, triangle 64K", 65536, 65536, 32, 2048, true},
      {"GLM, triangle 16K", 16384, 16384, 32, 2048, true},
      {"V4, last 8K of 262,144 entries", 8448, 262144, 64, 512, true},
      {"QSA, last 8K of 262,144 blocks", 8448, 262144, 4, 512, false},
      {"GLM, odd: last 1,003 of 100,001 keys", 1003, 100001, 32, 2048, true},
      {"V4, whole: 1M tokens, 262,144 entries", m, 262144, 64, 512, true, Kind::normal, false, 4}};
  std::vector<TopKShape> special;
  for (const auto& [name, kind] : {std::pair{"rising", Kind::rising}, {"falling", Kind::falling}, {"all equal", Kind::equal}, {"zero plateau", Kind::zeros}, {"one outlier", Kind::outlier},
                                   {"clustered", Kind::clustered}, {"documents shorter than k", Kind::documents}})
    for (const auto& [heads, k] : {std::pair<int64_t, int64_t>{32, 2048}, {64, 512}, {4, 512}})
      for (const bool e4m3 : {false, true})
        if (heads == 32 || !e4m3) special.push_back({name, 2111, 100001, heads, k, heads != 4, kind, e4m3});
  std::vector<Row> rows;
  const auto left_out = [&](const TopKShape& s) { return std::string(s.name).find(only) == std::string::npos; };
  for (const TopKShape& s : kinds ? special : usual) {
    if (left_out(s)) continue;
    if (quick && s.queries * s.keys > (int64_t{1} << 30)) continue;
    rows.push_back(flash(TopKCase(s)));
    if (kinds) rows.back().name = concat(s.name, ", ", s.heads, " heads", s.e4m3 ? ", e4m3" : "");
  }
  for (const auto& [s, chunk] : {std::pair{TopKShape{"GLM, last 1K of 1M keys", 1024, m, 32, 2048, true}, 64}, {TopKShape{"GLM, last 8K of 128K keys", 8192, 131072, 32, 2048, true}, 256}}) {
    if (quick || kinds || left_out(s)) continue;
    const TopKCase c(s);
    rows.push_back(flash(c));
    rows.push_back(table(c, chunk));
  }
  return rows;
}

}  // namespace hyscale::bench
