// The warm-up stage's two ops at GLM-5.1's shapes: 64 heads of 256 and 256, an indexer of 32 x 128, one causal document.
#include <algorithm>

#include "bench/bench.h"
#include "kernels/common/cuda.cuh"
#include "kernels/dense_attention/dense_attention.h"
#include "kernels/dense_index_loss/dense_index_loss.h"

namespace hyscale::bench {
namespace {

constexpr int64_t kHeads = 64, kDims = 256, kIndexHeads = 32, kIndexDims = 128;

__global__ void causal_kernel(int32_t* begin, int32_t* end, int64_t tokens) {
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; t < tokens; t += static_cast<int64_t>(gridDim.x) * blockDim.x)
    begin[t] = 0, end[t] = static_cast<int32_t>(t + 1);
}

void add_rows(int64_t tokens, std::vector<Row>& rows) {
  Memory memory;
  const Shape heads{tokens, kHeads, kDims}, index{tokens, kIndexHeads, kIndexDims};
  const Tensor q = memory.normal(heads, 1), k = memory.normal(heads, 2), v = memory.normal(heads, 3), out = memory.make(DType::bf16, heads, "out");
  const Tensor lse = memory.make(DType::f32, {tokens, kHeads}, "lse"), begin = memory.make(DType::i32, {tokens}, "begin"), end = memory.make(DType::i32, {tokens}, "end");
  causal_kernel<<<256, 256>>>(begin.i32(), end.i32(), tokens);
  const double pairs = 0.5 * static_cast<double>(tokens) * static_cast<double>(tokens + 1);
  Row attention;
  attention.name = concat("dense attention, ", tokens, " tokens");
  attention.ms = median_ms([&] { dense_attention({q, k, v, begin, end, 0.0625f, out, lse, {}, {}}); }, 3);
  attention.tflop = 1e-12 * pairs * kHeads * 4 * kDims;
  attention.gemm_rate = sustained_gemm_rate(std::min(attention.ms, 1000.0));
  rows.push_back(attention);

  const Tensor index_q = memory.normal(index, 4), keys = memory.normal({tokens, kIndexDims}, 5), weights = memory.uniform({tokens, kIndexHeads}, 6, 0, 0.02f);
  const Tensor sum = memory.make(DType::f64, {1}, "loss"), dq = memory.make(DType::bf16, index, "dq"), dw = memory.make(DType::f32, {tokens, kIndexHeads}, "dw"),
               dkeys = memory.make(DType::f32, {tokens, kIndexDims}, "dkeys");
  zero(sum, {});
  zero(dkeys, {});
  DenseIndexLoss l{q, k, lse, 0.0625f, index_q, weights, keys, begin, end, {}, 1, sum, dq, dw, dkeys, {}, {}};
  l.workspace = memory.make(DType::u8, {static_cast<int64_t>(dense_index_loss_workspace_bytes(l))}, "workspace");
  Row loss;
  loss.name = concat("dense index loss, ", tokens, " tokens");
  loss.ms = median_ms([&] { dense_index_loss(l); }, 3);
  loss.tflop = 1e-12 * pairs * 2 * (kHeads * kDims + 5 * kIndexHeads * kIndexDims);  // teacher; scores three times, two gradients
  loss.extra_bytes = l.workspace.bytes();
  loss.gemm_rate = sustained_gemm_rate(std::min(loss.ms, 1000.0));
  rows.push_back(loss);
}

}  // namespace

std::vector<Row> dense_benchmark(bool quick) {
  std::vector<Row> rows;
  for (int64_t tokens : {8192, 32768, 65536})
    if (!quick || tokens <= 32768) add_rows(tokens, rows);
  return rows;
}

}  // namespace hyscale::bench
