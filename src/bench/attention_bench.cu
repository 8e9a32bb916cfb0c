// Times sparse attention forward and backward at GLM's latent shape: 64 heads, 576/512, k = 2048, for random ids and for ids of
// which 64 neighbouring queries share 90%, with 64K and 1M rows. Sampled results are checked against f64 on the host.
#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/bench.h"
#include "kernels/index_loss/index_loss.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace hyscale::bench {
namespace {

constexpr int kHeads = 64, kDk = 576, kDv = 512, kK = 2048;

struct Problem {
  Memory memory;
  SparseAttentionForward forward;
  SparseAttentionBackward backward;
  Problem(int64_t queries, int64_t rows, int shared) {
    const Shape of_queries{queries, kHeads, kDk}, of_values{queries, kHeads, kDv};
    const Selection selection = spread_selection(memory, queries, kK, rows, shared);
    forward = {memory.normal(of_queries, 1), memory.normal({rows, kDk}, 2), selection, 1.f / 24, memory.make(DType::bf16, of_values, "out"), memory.make(DType::f32, {queries, kHeads}, "lse"), {}, {}};
    backward = {forward.q, forward.kv, selection, forward.scale, forward.out, forward.lse, memory.normal(of_values, 3), memory.make(DType::bf16, of_queries, "dq"),
                memory.make(DType::f32, {rows, kDk}, "dkv"), memory.make(DType::f32, {queries, kK}, "head_sum"), true, {}, {}};
    backward.workspace = memory.make(DType::u8, {static_cast<int64_t>(sparse_attention_backward_workspace_bytes(backward))}, "workspace");
    zero(backward.dkv, {});
  }
};

// Largest relative L2 error of out and dq over sampled (query, head), against f64 from the device's own inputs.
std::pair<double, double> errors(const Problem& p, int64_t queries) {
  double worst_out = 0, worst_dq = 0;
  for (int64_t t : {int64_t{0}, queries / 3, queries - 1}) {
    const int64_t at = t * kHeads + t % kHeads;
    const std::vector<double> q = download_bf16(p.forward.q, at * kDk, kDk), dout = download_bf16(p.backward.dout, at * kDv, kDv);
    std::vector<std::vector<double>> rows;
    for (int32_t id : download<int32_t>(p.forward.selection.indices, t * kK, kK)) rows.push_back(download_bf16(p.forward.kv, int64_t{id} * kDk, kDk));
    std::vector<double> weight(kK), dp(kK), out(kDv), dq(kDk);
    double total = 0, delta = 0;
    for (int j = 0; j < kK; ++j) {
      for (int d = 0; d < kDk; ++d) weight[j] += q[d] * rows[j][d] / 24;
      total += weight[j] = std::exp(weight[j]);
    }
    for (int j = 0; j < kK; ++j) {
      weight[j] /= total;
      for (int d = 0; d < kDv; ++d) out[d] += weight[j] * rows[j][d], dp[j] += dout[d] * rows[j][d];
      delta += weight[j] * dp[j];
    }
    for (int j = 0; j < kK; ++j)
      for (int d = 0; d < kDk; ++d) dq[d] += weight[j] * (dp[j] - delta) / 24 * rows[j][d];
    worst_out = std::max(worst_out, relative_error(download_bf16(p.forward.out, at * kDv, kDv), out));
    worst_dq = std::max(worst_dq, relative_error(download_bf16(p.backward.dq, at * kDk, kDk), dq));
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
    constexpr int64_t kNumbers = kIndexHeads * kIndexDims;
    const std::vector<float> head_sum = download<float>(l.head_sum, t * kK, kK);
    const std::vector<double> q = download_bf16(l.q, t * kNumbers, kNumbers);
    std::vector<std::vector<double>> keys;
    for (int32_t id : download<int32_t>(l.selection.indices, t * kK, kK)) keys.push_back(download_bf16(l.keys, int64_t{id} * kIndexDims, kIndexDims));
    std::vector<double> products(static_cast<size_t>(kK) * kIndexHeads), scores(kK), dq(static_cast<size_t>(kIndexHeads) * kIndexDims);
    double teacher = 0, student = 0, top = 0;
    for (int j = 0; j < kK; ++j) {
      for (int h = 0; h < kIndexHeads; ++h) {
        double dot = 0;
        for (int d = 0; d < kIndexDims; ++d) dot += q[h * kIndexDims + d] * keys[j][d];
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
        for (int d = 0; d < kIndexDims && products[j * kIndexHeads + h] > 0; ++d) dq[h * kIndexDims + d] += g * keys[j][d];
    }
    worst = std::max(worst, relative_error(download_bf16(l.dq, t * kNumbers, kNumbers), dq));
  }
  return worst;
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
