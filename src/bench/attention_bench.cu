// Times sparse attention forward and backward at GLM's latent shape: 64 heads, 576/512, k = 2048, for random ids and for ids of
// which 64 neighbouring queries share 90%, with 64K and 1M rows. Sampled results are checked against f64 on the host.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/bench.h"
#include "kernels/index_loss/index_loss.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace hyscale::bench {
namespace {

using bf16 = __nv_bfloat16;
constexpr int kHeads = 64, kDk = 576, kDv = 512, kK = 2048;

__host__ __device__ uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
__global__ void fill_normal(bf16* to, int64_t count, uint64_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint64_t z = mix(static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull + seed);
    const float u = static_cast<float>((z & 0xffffff) + 1) / 16777217.f, v = static_cast<float>(z >> 24 & 0xffffff) / 16777216.f;
    to[i] = __float2bfloat16(sqrtf(-2 * logf(u)) * cospif(2 * v));
  }
}
// One id from each of k equal ranges of rows; `shared` of ten ranges draw alike for 64 neighbouring queries.
__global__ void fill_ids(int32_t* ids, int32_t* counts, int64_t rows, int shared) {
  const int64_t t = blockIdx.x, range = rows / kK;
  for (int j = static_cast<int>(threadIdx.x); j < kK; j += static_cast<int>(blockDim.x)) {
    const uint64_t owner = j % 10 < shared ? static_cast<uint64_t>(t / 64) : static_cast<uint64_t>(t) + (uint64_t{1} << 40);
    ids[t * kK + j] = static_cast<int32_t>(j * range + static_cast<int64_t>(mix(owner * 4096 + static_cast<uint64_t>(j) + 0x9E3779B97F4A7C15ull) % static_cast<uint64_t>(range)));
  }
  if (threadIdx.x == 0) counts[t] = kK;
}

template <typename T>
std::vector<T> download(const void* from, int64_t count) {
  std::vector<T> to(static_cast<size_t>(count));
  copy_bytes(to.data(), {}, from, kCuda, to.size() * sizeof(T), {});
  synchronize(kCuda, {});
  return to;
}
double value(uint16_t x) { return bf16_to_float(x); }

struct Problem {
  Buffer q, kv, ids, counts, out, lse, dout, dq, dkv, head_sum, workspace;
  SparseAttentionForward forward;
  SparseAttentionBackward backward;
  Problem(int64_t queries, int64_t rows, int shared);
};

Problem::Problem(int64_t queries, int64_t rows, int shared) {
  const auto make = [](Buffer& b, DType dtype, Shape shape, const char* name) {
    b = Buffer(kCuda, static_cast<size_t>(shape.elements()) * dtype_bytes(dtype), name);
    return Tensor(b.data(), dtype, kCuda, shape);
  };
  const Selection selection{make(ids, DType::i32, {queries, kK}, "ids"), make(counts, DType::i32, {queries}, "counts")};
  forward = {make(q, DType::bf16, {queries, kHeads, kDk}, "q"), make(kv, DType::bf16, {rows, kDk}, "kv"), selection, 1.f / 24,
             make(out, DType::bf16, {queries, kHeads, kDv}, "out"), make(lse, DType::f32, {queries, kHeads}, "lse"), {}, {}};
  backward = {forward.q, forward.kv, selection, forward.scale, forward.out, forward.lse, make(dout, DType::bf16, {queries, kHeads, kDv}, "dout"),
              make(dq, DType::bf16, {queries, kHeads, kDk}, "dq"), make(dkv, DType::f32, {rows, kDk}, "dkv"),
              make(head_sum, DType::f32, {queries, kK}, "head_sum"), true, {}, {}};
  backward.workspace = make(workspace, DType::u8, {static_cast<int64_t>(sparse_attention_backward_workspace_bytes(backward))}, "workspace");
  fill_normal<<<2048, 256>>>(static_cast<bf16*>(q.data()), forward.q.elements(), 1);
  fill_normal<<<2048, 256>>>(static_cast<bf16*>(kv.data()), forward.kv.elements(), 2);
  fill_normal<<<2048, 256>>>(static_cast<bf16*>(dout.data()), backward.dout.elements(), 3);
  fill_ids<<<static_cast<unsigned>(queries), 256>>>(static_cast<int32_t*>(ids.data()), static_cast<int32_t*>(counts.data()), rows, shared);
  zero(backward.dkv, {});
}

// Largest relative L2 error of out and dq over sampled (query, head), against f64 from the device's own inputs.
std::pair<double, double> errors(const Problem& p, int64_t queries) {
  double worst_out = 0, worst_dq = 0;
  for (int64_t t : {int64_t{0}, queries / 3, queries - 1}) {
    const int h = static_cast<int>(t % kHeads);
    const auto ids = download<int32_t>(p.forward.selection.indices.i32() + t * kK, kK);
    const auto q = download<uint16_t>(p.forward.q.data<uint16_t>() + (t * kHeads + h) * kDk, kDk);
    const auto dout = download<uint16_t>(p.backward.dout.data<uint16_t>() + (t * kHeads + h) * kDv, kDv);
    const auto got = download<uint16_t>(p.forward.out.data<uint16_t>() + (t * kHeads + h) * kDv, kDv);
    const auto got_dq = download<uint16_t>(p.backward.dq.data<uint16_t>() + (t * kHeads + h) * kDk, kDk);
    std::vector<std::vector<uint16_t>> rows;
    for (int32_t id : ids) rows.push_back(download<uint16_t>(p.forward.kv.data<uint16_t>() + static_cast<int64_t>(id) * kDk, kDk));
    std::vector<double> weight(kK), dp(kK), out(kDv), dq(kDk);
    double total = 0, delta = 0;
    for (int j = 0; j < kK; ++j) {
      for (int d = 0; d < kDk; ++d) weight[j] += value(q[d]) * value(rows[j][d]) / 24;
      total += weight[j] = std::exp(weight[j]);
    }
    for (int j = 0; j < kK; ++j) {
      weight[j] /= total;
      for (int d = 0; d < kDv; ++d) out[d] += weight[j] * value(rows[j][d]), dp[j] += value(dout[d]) * value(rows[j][d]);
      delta += weight[j] * dp[j];
    }
    for (int j = 0; j < kK; ++j)
      for (int d = 0; d < kDk; ++d) dq[d] += weight[j] * (dp[j] - delta) / 24 * value(rows[j][d]);
    const auto error = [](const std::vector<uint16_t>& x, const std::vector<double>& y) {
      double difference = 0, norm = 0;
      for (size_t i = 0; i < y.size(); ++i) difference += std::pow(value(x[i]) - y[i], 2), norm += y[i] * y[i];
      return std::isfinite(difference) ? std::sqrt(difference / norm) : INFINITY;
    };
    worst_out = std::max(worst_out, error(got, out));
    worst_dq = std::max(worst_dq, error(got_dq, dq));
  }
  return {worst_out, worst_dq};
}

constexpr int kIndexHeads = 32, kIndexDims = 128;

// The index loss behind an attention backward: 32 heads of 128, weights all one.
struct LossProblem {
  Memory memory;
  IndexLoss loss;
  LossProblem(const Problem& p, int64_t queries, int64_t rows, bool deterministic) {
    const Shape shape{queries, kIndexHeads, kIndexDims};
    loss.q = memory.normal(shape, 4);
    loss.keys = memory.normal({rows, kIndexDims}, 5);
    loss.selection = p.forward.selection;
    loss.head_sum = p.backward.head_sum;
    loss.grad_scale = 1.f / static_cast<float>(queries);
    loss.loss_sum = memory.make(DType::f64, {1}, "loss");
    loss.dq = memory.make(DType::bf16, shape, "dq");
    loss.dkeys = memory.make(DType::f32, {rows, kIndexDims}, "dkeys");
    loss.deterministic = deterministic;
    loss.workspace = memory.make(DType::u8, {static_cast<int64_t>(index_loss_workspace_bytes(loss))}, "workspace");
    zero(loss.dkeys, {});
    zero(loss.loss_sum, {});
  }
};

// Largest relative L2 error of dq over sampled queries, against f64 from the device's own inputs.
double loss_error(const IndexLoss& l, int64_t queries) {
  double worst = 0;
  for (int64_t t : {int64_t{0}, queries / 3, queries - 1}) {
    const auto ids = download<int32_t>(l.selection.indices.i32() + t * kK, kK);
    const auto head_sum = download<float>(l.head_sum.f32() + t * kK, kK);
    const auto q = download<uint16_t>(l.q.data<uint16_t>() + t * kIndexHeads * kIndexDims, kIndexHeads * kIndexDims);
    const auto got = download<uint16_t>(l.dq.data<uint16_t>() + t * kIndexHeads * kIndexDims, kIndexHeads * kIndexDims);
    std::vector<std::vector<uint16_t>> keys;
    for (int32_t id : ids) keys.push_back(download<uint16_t>(l.keys.data<uint16_t>() + static_cast<int64_t>(id) * kIndexDims, kIndexDims));
    std::vector<double> products(static_cast<size_t>(kK) * kIndexHeads), scores(kK), dq(static_cast<size_t>(kIndexHeads) * kIndexDims);
    double teacher = 0, student = 0, top = 0;
    for (int j = 0; j < kK; ++j) {
      for (int h = 0; h < kIndexHeads; ++h) {
        double dot = 0;
        for (int d = 0; d < kIndexDims; ++d) dot += value(q[h * kIndexDims + d]) * value(keys[j][d]);
        products[j * kIndexHeads + h] = dot;
        scores[j] += std::max(dot, 0.0);
      }
      teacher += head_sum[j];
      top = std::max(top, scores[j]);
    }
    for (double x : scores) student += std::exp(x - top);
    for (int j = 0; j < kK; ++j) {
      const double g = l.grad_scale * (std::exp(scores[j] - top) / student - head_sum[j] / teacher);
      for (int h = 0; h < kIndexHeads; ++h)
        for (int d = 0; d < kIndexDims && products[j * kIndexHeads + h] > 0; ++d) dq[h * kIndexDims + d] += g * value(keys[j][d]);
    }
    double difference = 0, norm = 0;
    for (size_t i = 0; i < dq.size(); ++i) difference += std::pow(value(got[i]) - dq[i], 2), norm += dq[i] * dq[i];
    worst = std::max(worst, std::isfinite(difference) ? std::sqrt(difference / norm) : INFINITY);
  }
  return worst;
}

std::string verdict(double error) {
  char text[64];
  std::snprintf(text, sizeof text, "%s: relative error %.1e", error < 1e-2 ? "right" : "WRONG", error);
  return text;
}

}  // namespace

std::vector<Row> attention_benchmark(int64_t queries, bool loss) {
  std::vector<Row> all;
  const double pairs = static_cast<double>(queries) * kK;
  const auto row = [&](const std::string& name, double ms, double flop_of_pair, double bytes_of_pair, double error) {
    all.push_back({name, verdict(error), ms, 1e-12 * pairs * flop_of_pair, 1e-9 * pairs * bytes_of_pair, 0, sustained_gemm_rate(ms)});
  };
  for (int64_t rows : {int64_t{1} << 16, int64_t{1} << 20})
    for (int shared : {0, 9}) {
      Problem p(queries, rows, shared);
      const std::string ids = concat(shared ? "64 share 90%" : "random", ", ", rows >> 10, "K rows");
      const double forward = median_ms([&] { sparse_attention_forward(p.forward); }, 5);
      p.backward.deterministic = false;
      const double backward = median_ms([&] { sparse_attention_backward(p.backward); }, 5);
      const auto [out_error, dq_error] = errors(p, queries);
      if (loss) {
        for (bool deterministic : {false, true}) {
          LossProblem problem(p, queries, rows, deterministic);
          const double ms = median_ms([&] { index_loss(problem.loss); }, 5);
          row(concat("index loss", deterministic ? " deterministic" : "", ", ", ids, ": ", static_cast<int>(1000 * ms / backward) / 10.0, "% of backward"), ms,
              6.0 * kIndexHeads * kIndexDims, 2.0 * 2 * kIndexDims + 4 * kIndexDims, loss_error(problem.loss, queries));
        }
        continue;
      }
      row("forward, " + ids, forward, 2.0 * kHeads * (kDk + kDv), 2.0 * kDk, out_error);
      row("backward, " + ids, backward, 2.0 * kHeads * (3 * kDk + 2 * kDv), 2.0 * kDk + 4 * kDk, dq_error);
      p.backward.deterministic = true;
      const double deterministic = median_ms([&] { sparse_attention_backward(p.backward); }, 5);
      row("backward deterministic, " + ids, deterministic, 2.0 * kHeads * (3 * kDk + 2 * kDv), 2.0 * kDk + 8 * kDk, errors(p, queries).second);
    }
  return all;
}

}  // namespace hyscale::bench
