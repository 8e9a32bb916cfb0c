// The gated delta rule at Qwen3.8's shape, 16 key heads and 48 value heads of 128, beside its roof: the products of the chunk form at the
// rate that cuBLAS sustains, or its inputs, results and states (bf16, written and read once) at 4.2 TB/s, whichever takes longer.
// The last of two documents is checked against the CPU, for one key head and its value heads.
#include <algorithm>
#include <cmath>

#include "bench/bench.h"
#include "kernels/common/cuda.cuh"
#include "kernels/gated_delta/gated_delta.h"
#include "kernels/l2_norm/l2_norm.h"

namespace hyscale::bench {
namespace {

constexpr int64_t kKeyHeads = 16, kValueHeads = 48, kDim = 128, kChunk = 64, kChecked = 1024;  // kChecked: tokens of the last document
constexpr double kMemoryRate = 4.2;                                                            // TB/s
constexpr float kScale = 0.08838834764f;                                                       // 128^-1/2
// U, W, V', T, S and their gradients are rounded to bf16 on the way, each by 1.1e-3 in the mean square.
constexpr double kTolerance = 6e-3;

struct Problem {
  Memory memory;
  int64_t tokens;
  Tensor q, k, v, log_decay, beta, starts, dout, o, dq, dk, dv, dlog_decay, dbeta;
  explicit Problem(int64_t t) : tokens(t) {
    const Shape keys{t, kKeyHeads, kDim}, values{t, kValueHeads, kDim}, gates{t, kValueHeads};
    const Tensor norms = memory.make(DType::f32, {t, kKeyHeads}, "norms");
    q = memory.normal(keys, 1), k = memory.normal(keys, 2), v = memory.normal(values, 3), dout = memory.normal(values, 4);
    l2_norm({q, 1e-6f, q, norms, {}});
    l2_norm({k, 1e-6f, k, norms, {}});
    log_decay = memory.uniform(gates, 5, -0.2f, 0), beta = memory.uniform(gates, 6, 0, 1);
    o = memory.make(DType::bf16, values, "o"), dv = memory.make(DType::bf16, values, "dv");
    dq = memory.make(DType::bf16, keys, "dq"), dk = memory.make(DType::bf16, keys, "dk");
    dlog_decay = memory.make(DType::f32, gates, "dlog_decay"), dbeta = memory.make(DType::f32, gates, "dbeta");
    starts = memory.make(DType::i32, {3}, "starts");
    const int32_t host[] = {0, static_cast<int32_t>(t - kChecked), static_cast<int32_t>(t)};
    copy_bytes(starts.raw(), kCuda, host, {}, sizeof(host), {});
    synchronize(kCuda, {});
  }
  GatedDelta forward() const { return {q, k, v, log_decay, beta, starts, kScale, kChunk, o, {}, {}}; }
  GatedDeltaBackward backward() const { return {q, k, v, log_decay, beta, starts, kScale, kChunk, dout, dq, dk, dv, dlog_decay, dbeta, {}, {}}; }
};

// The last document's rows of the first heads, as f32 on the host.
struct Piece {
  std::vector<float> numbers;
  Tensor tensor;
  Piece(const Tensor& x, int64_t heads) {
    const Tensor rows = x.slice(0, x.size(0) - kChecked, x.size(0));
    std::vector<uint16_t> narrow(static_cast<size_t>(rows.elements()));
    std::vector<float> wide(narrow.size());
    copy_bytes(rows.dtype() == DType::bf16 ? static_cast<void*>(narrow.data()) : wide.data(), {}, rows.raw(), kCuda, rows.bytes(), {});
    synchronize(kCuda, {});
    for (size_t i = 0; rows.dtype() == DType::bf16 && i < wide.size(); ++i) wide[i] = bf16_to_float(narrow[i]);
    const int64_t of_row = rows.elements() / kChecked, dims = of_row / x.size(1), kept = heads * dims;
    for (int64_t t = 0; t < kChecked; ++t) numbers.insert(numbers.end(), wide.begin() + t * of_row, wide.begin() + t * of_row + kept);
    tensor = Tensor(numbers.data(), DType::f32, {}, x.rank() == 3 ? Shape{kChecked, heads, dims} : Shape{kChecked, heads});
  }
  Piece(Piece&&) = delete;
};

// ||result - expected|| / ||expected|| of two pieces.
double difference(const Piece& result, const Piece& expected) {
  double sum = 0, norm = 0;
  for (size_t i = 0; i < result.numbers.size(); ++i) {
    sum += (double{result.numbers[i]} - expected.numbers[i]) * (double{result.numbers[i]} - expected.numbers[i]);
    norm += double{expected.numbers[i]} * expected.numbers[i];
  }
  return std::sqrt(sum / norm);
}

struct Errors {
  double forward, backward;
};
Errors errors_of(const Problem& p) {
  constexpr int64_t kGroup = kValueHeads / kKeyHeads;
  const Piece q(p.q, 1), k(p.k, 1), v(p.v, kGroup), decay(p.log_decay, kGroup), beta(p.beta, kGroup), dout(p.dout, kGroup);
  const Piece results[] = {{p.o, kGroup}, {p.dq, 1}, {p.dk, 1}, {p.dv, kGroup}, {p.dlog_decay, kGroup}, {p.dbeta, kGroup}};
  const Piece expected[] = {{p.o, kGroup}, {p.dq, 1}, {p.dk, 1}, {p.dv, kGroup}, {p.dlog_decay, kGroup}, {p.dbeta, kGroup}};
  int32_t host_starts[] = {0, static_cast<int32_t>(kChecked)};
  const Tensor starts(host_starts, DType::i32, {}, {2});
  GatedDelta f{q.tensor, k.tensor, v.tensor, decay.tensor, beta.tensor, starts, kScale, kChunk, expected[0].tensor, {}, {}};
  GatedDeltaBackward b{q.tensor, k.tensor, v.tensor, decay.tensor, beta.tensor, starts, kScale, kChunk, dout.tensor, expected[1].tensor, expected[2].tensor, expected[3].tensor,
                       expected[4].tensor, expected[5].tensor, {}, {}};
  const size_t bytes = std::max(gated_delta_workspace_bytes(f), gated_delta_backward_workspace_bytes(b));
  const Buffer space({}, bytes, "workspace");
  f.workspace = b.workspace = Tensor(space.data(), DType::u8, {}, {static_cast<int64_t>(bytes)});
  gated_delta(f);
  gated_delta_backward(b);
  Errors e{difference(results[0], expected[0]), 0};
  for (int i = 1; i < 6; ++i) e.backward = std::max(e.backward, difference(results[i], expected[i]));
  return e;
}

// wide, square: products of [64, 128] by [128, 128] and of [64, 64] by [64, 128] in a chunk; tensors: key-sized and value-sized ones moved.
Row row_of(const std::string& name, const Problem& p, double ms, double wide, double square, double keys, double values, double states, size_t extra) {
  const double chunk_heads = static_cast<double>(p.tokens / kChunk * kValueHeads);
  Row r;
  r.name = concat(name, ", ", p.tokens, " tokens");
  r.ms = ms;
  r.tflop = 1e-12 * chunk_heads * 2 * (wide * kChunk * kDim * kDim + square * kChunk * kChunk * kDim);
  r.gigabytes = 1e-9 * (2.0 * static_cast<double>(p.tokens) * kDim * (keys * kKeyHeads + values * kValueHeads) + states * 2 * chunk_heads * 2 * kDim * kDim);
  r.extra_bytes = extra;
  r.gemm_rate = sustained_gemm_rate(std::min(ms, 1000.0));
  return r;
}

void judge(Row& r, double error) {
  const double roof = std::max(r.tflop / r.gemm_rate * 1e3, r.gigabytes / kMemoryRate);
  r.check = concat(error < kTolerance ? "ok " : "WRONG ", error, "; roof ", roof, " ms");
}

void add_rows(int64_t tokens, std::vector<Row>& rows) {
  Problem p(tokens);
  GatedDelta f = p.forward();
  GatedDeltaBackward b = p.backward();
  const size_t forward_bytes = gated_delta_workspace_bytes(f), backward_bytes = gated_delta_backward_workspace_bytes(b);
  f.workspace = b.workspace = p.memory.make(DType::u8, {static_cast<int64_t>(std::max(forward_bytes, backward_bytes))}, "workspace");
  Row forward = row_of("gated delta", p, median_ms([&] { gated_delta(f); }, 5), 3, 5, 2, 2, 1, forward_bytes);
  // The states of forward again (W S, K^T V'; K K^T, U, W), then six wide and nine square products.
  Row backward = row_of("gated delta backward", p, median_ms([&] { gated_delta_backward(b); }, 5), 8, 12, 4, 3, 2, backward_bytes);
  const Errors e = errors_of(p);
  judge(forward, e.forward);
  judge(backward, e.backward);
  rows.push_back(forward);
  rows.push_back(backward);
}

}  // namespace

std::vector<Row> delta_benchmark(bool quick) {
  std::vector<Row> rows;
  for (int64_t tokens : {8192, 131072})
    if (!quick || tokens <= 8192) add_rows(tokens, rows);
  return rows;
}

}  // namespace hyscale::bench
