// Times block attention forward and backward at Qwen3.8's shape: 24 heads in 2 groups, 256 numbers, 512 blocks of 4 tokens and a tail,
// for random blocks and for blocks of which 64 neighbouring queries share 90%, with 64K and 1M tokens of keys. Sampled results are
// checked against f64 on the host. Bytes are of gathered rows and, in backward, of the f32 sums that leave the chip.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/bench.h"
#include "kernels/block_attention/block_attention.h"

namespace hyscale::bench {
namespace {

constexpr int kHeads = 24, kGroups = 2, kDims = 256, kBlocks = 512, kRatio = 4;
constexpr double kScale = 1.0 / 16;

// first, first + step, ...
__global__ void fill_steps(int32_t* to, int64_t count, int64_t first, int64_t step) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) to[i] = static_cast<int32_t>(first + step * i);
}

struct Problem {
  Memory memory;
  BlockAttentionForward forward;
  BlockAttentionBackward backward;
  Problem(int64_t queries, int64_t rows, int shared) {
    const Shape of_queries{queries, kHeads, kDims}, of_keys{rows, kGroups, kDims};
    const int64_t blocks = rows / kRatio;
    const Selection selection = spread_selection(memory, queries, kBlocks, blocks, shared);
    const AttendedBlocks attended{kRatio, memory.make(DType::i32, {blocks}, "first tokens"), memory.make(DType::i32, {queries}, "positions"), selection, rows - queries};
    forward = {memory.normal(of_queries, 1), memory.normal(of_keys, 2), memory.normal(of_keys, 3), attended, static_cast<float>(kScale), memory.make(DType::bf16, of_queries, "out"),
               memory.make(DType::f32, {queries, kHeads}, "lse"), {}, {}};
    backward = {forward.q, forward.k, forward.v, attended, forward.scale, forward.out, forward.lse, memory.normal(of_queries, 4), memory.make(DType::bf16, of_queries, "dq"),
                memory.make(DType::f32, of_keys, "dk"), memory.make(DType::f32, of_keys, "dv"), memory.make(DType::f32, {queries, kBlocks}, "mass"), {}, {}, false};
    const auto workspace = [&](size_t bytes) { return memory.make(DType::u8, {static_cast<int64_t>(bytes)}, "workspace"); };
    forward.workspace = workspace(block_attention_forward_workspace_bytes(forward));
    backward.workspace = workspace(block_attention_backward_workspace_bytes(backward));
    zero(backward.dk, {});
    zero(backward.dv, {});
    fill_steps<<<256, 256>>>(attended.first_token.i32(), blocks, 0, kRatio);
    fill_steps<<<256, 256>>>(attended.positions.i32(), queries, attended.first_row, 1);  // queries are the last tokens
  }
};

// Largest relative L2 error of out and dq over sampled (query, head), against f64 from the device's own inputs.
std::pair<double, double> errors(const Problem& p, int64_t queries) {
  const AttendedBlocks& b = p.forward.blocks;
  double worst_out = 0, worst_dq = 0;
  for (int64_t t : {int64_t{0}, queries / 3, queries - 1}) {
    const int64_t head = t % kHeads, group = head / (kHeads / kGroups), at = (t * kHeads + head) * kDims;
    std::vector<int64_t> rows;
    for (int32_t e : download<int32_t>(b.selection.indices, t * kBlocks, kBlocks))
      for (int i = 0; i < kRatio; ++i) rows.push_back(int64_t{kRatio} * e + i);
    const int64_t own = b.first_row + t;
    for (int64_t i = own + 1 - (own + 1) % kRatio; i <= own; ++i) rows.push_back(i);
    const std::vector<double> q = download_bf16(p.forward.q, at, kDims), dout = download_bf16(p.backward.dout, at, kDims);
    std::vector<std::vector<double>> keys;
    std::vector<double> weight, dp, out(kDims), dq(kDims);
    double total = 0, delta = 0;
    for (int64_t row : rows) {
      keys.push_back(download_bf16(p.forward.k, (row * kGroups + group) * kDims, kDims));
      double logit = 0;
      for (int d = 0; d < kDims; ++d) logit += kScale * q[static_cast<size_t>(d)] * keys.back()[static_cast<size_t>(d)];
      weight.push_back(std::exp(logit));
      total += weight.back();
    }
    for (size_t j = 0; j < rows.size(); ++j) {
      const std::vector<double> value = download_bf16(p.forward.v, (rows[j] * kGroups + group) * kDims, kDims);
      weight[j] /= total;
      dp.push_back(0);
      for (size_t d = 0; d < kDims; ++d) out[d] += weight[j] * value[d], dp[j] += dout[d] * value[d];
      delta += weight[j] * dp[j];
    }
    for (size_t j = 0; j < rows.size(); ++j)
      for (size_t d = 0; d < kDims; ++d) dq[d] += weight[j] * (dp[j] - delta) * kScale * keys[j][d];
    worst_out = std::max(worst_out, relative_error(download_bf16(p.forward.out, at, kDims), out));
    worst_dq = std::max(worst_dq, relative_error(download_bf16(p.backward.dq, at, kDims), dq));
  }
  return {worst_out, worst_dq};
}

}  // namespace

std::vector<Row> block_attention_benchmark(int64_t queries) {
  std::vector<Row> all;
  const double tokens = static_cast<double>(queries) * kBlocks * kRatio, gathered = 2.0 * 2 * kGroups * kDims, summed = 2.0 * 4 * kGroups * kDims;
  const auto row = [&](const std::string& name, double ms, double products, double bytes, double error) {
    all.push_back({name, verdict(error), ms, 1e-12 * tokens * products * 2 * kHeads * kDims, 1e-9 * tokens * bytes, 0, sustained_gemm_rate(ms)});
  };
  for (int64_t rows : {int64_t{1} << 16, int64_t{1} << 20})
    for (int shared : {0, 9}) {
      Problem p(queries, rows, shared);
      const std::string blocks = concat(shared ? "64 share 90%" : "random", ", ", rows >> 10, "K tokens");
      const double forward = median_ms([&] { block_attention_forward(p.forward); }, 5);
      const double backward = median_ms([&] { block_attention_backward(p.backward); }, 5);
      const auto [out_error, dq_error] = errors(p, queries);
      row("forward, " + blocks, forward, 2, gathered, out_error);
      row("backward, " + blocks, backward, 5, gathered + summed, dq_error);
    }
  return all;
}

}  // namespace hyscale::bench
