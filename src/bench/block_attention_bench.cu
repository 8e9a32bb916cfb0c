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

__device__ uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
// One block from each of equal ranges; `shared` of ten ranges draw alike for 64 neighbouring queries. Queries are the last tokens.
__global__ void fill_blocks(int32_t* ids, int32_t* counts, int32_t* positions, int64_t blocks, int64_t first_row, int shared) {
  const int64_t t = blockIdx.x, range = blocks / kBlocks;
  for (int j = static_cast<int>(threadIdx.x); j < kBlocks; j += static_cast<int>(blockDim.x)) {
    const uint64_t owner = j % 10 < shared ? static_cast<uint64_t>(t / 64) : static_cast<uint64_t>(t) + (uint64_t{1} << 40);
    ids[t * kBlocks + j] = static_cast<int32_t>(j * range + static_cast<int64_t>(mix(owner * 4096 + static_cast<uint64_t>(j) + 0x9E3779B97F4A7C15ull) % static_cast<uint64_t>(range)));
  }
  if (threadIdx.x == 0) counts[t] = kBlocks, positions[t] = static_cast<int32_t>(first_row + t);
}
__global__ void fill_first_tokens(int32_t* first_token, int64_t blocks) {
  for (int64_t e = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; e < blocks; e += static_cast<int64_t>(gridDim.x) * blockDim.x) first_token[e] = static_cast<int32_t>(kRatio * e);
}

struct Problem {
  Memory memory;
  BlockAttentionForward forward;
  BlockAttentionBackward backward;
  Problem(int64_t queries, int64_t rows, int shared) {
    const Shape of_queries{queries, kHeads, kDims}, of_keys{rows, kGroups, kDims};
    const int64_t blocks = rows / kRatio;
    const Selection selection{memory.make(DType::i32, {queries, kBlocks}, "blocks"), memory.make(DType::i32, {queries}, "counts")};
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
    fill_blocks<<<static_cast<unsigned>(queries), 256>>>(selection.indices.i32(), selection.counts.i32(), attended.positions.i32(), blocks, attended.first_row, shared);
    fill_first_tokens<<<256, 256>>>(attended.first_token.i32(), blocks);
  }
};

template <typename T>
std::vector<T> download(const T* from, int64_t count) {
  std::vector<T> to(static_cast<size_t>(count));
  copy_bytes(to.data(), {}, from, kCuda, to.size() * sizeof(T), {});
  synchronize(kCuda, {});
  return to;
}
std::vector<double> numbers(const Tensor& t, int64_t at, int64_t count) {
  std::vector<double> x;
  for (uint16_t bits : download(t.data<uint16_t>() + at, count)) x.push_back(bf16_to_float(bits));
  return x;
}
double relative_error(const std::vector<double>& x, const std::vector<double>& y) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < y.size(); ++i) difference += std::pow(x[i] - y[i], 2), norm += y[i] * y[i];
  return std::isfinite(difference) ? std::sqrt(difference / norm) : INFINITY;
}

// Largest relative L2 error of out and dq over sampled (query, head), against f64 from the device's own inputs.
std::pair<double, double> errors(const Problem& p, int64_t queries) {
  const AttendedBlocks& b = p.forward.blocks;
  double worst_out = 0, worst_dq = 0;
  for (int64_t t : {int64_t{0}, queries / 3, queries - 1}) {
    const int64_t head = t % kHeads, group = head / (kHeads / kGroups), at = (t * kHeads + head) * kDims;
    std::vector<int64_t> rows;
    for (int32_t e : download(b.selection.indices.i32() + t * kBlocks, kBlocks))
      for (int i = 0; i < kRatio; ++i) rows.push_back(int64_t{kRatio} * e + i);
    const int64_t own = b.first_row + t;
    for (int64_t i = own + 1 - (own + 1) % kRatio; i <= own; ++i) rows.push_back(i);
    const std::vector<double> q = numbers(p.forward.q, at, kDims), dout = numbers(p.backward.dout, at, kDims);
    std::vector<std::vector<double>> keys;
    std::vector<double> weight, dp, out(kDims), dq(kDims);
    double total = 0, delta = 0;
    for (int64_t row : rows) {
      keys.push_back(numbers(p.forward.k, (row * kGroups + group) * kDims, kDims));
      double logit = 0;
      for (int d = 0; d < kDims; ++d) logit += kScale * q[static_cast<size_t>(d)] * keys.back()[static_cast<size_t>(d)];
      weight.push_back(std::exp(logit));
      total += weight.back();
    }
    for (size_t j = 0; j < rows.size(); ++j) {
      const std::vector<double> value = numbers(p.forward.v, (rows[j] * kGroups + group) * kDims, kDims);
      weight[j] /= total;
      dp.push_back(0);
      for (size_t d = 0; d < kDims; ++d) out[d] += weight[j] * value[d], dp[j] += dout[d] * value[d];
      delta += weight[j] * dp[j];
    }
    for (size_t j = 0; j < rows.size(); ++j)
      for (size_t d = 0; d < kDims; ++d) dq[d] += weight[j] * (dp[j] - delta) * kScale * keys[j][d];
    worst_out = std::max(worst_out, relative_error(numbers(p.forward.out, at, kDims), out));
    worst_dq = std::max(worst_dq, relative_error(numbers(p.backward.dq, at, kDims), dq));
  }
  return {worst_out, worst_dq};
}

std::string verdict(double error) {
  char text[64];
  std::snprintf(text, sizeof text, "%s: relative error %.1e", error < 1e-2 ? "right" : "WRONG", error);
  return text;
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
