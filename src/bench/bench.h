// What every benchmark shares: device memory, made-up data, checks, timing, the rate that cuBLAS sustains, and the table.
#pragma once
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/tensor.h"
#include "kernels/flash_topk/selection.h"

namespace hyscale::bench {

inline constexpr Device kCuda{DeviceType::cuda, 0};

// Device tensors that live as long as this object.
class Memory {
 public:
  Tensor make(DType, Shape, const char* purpose);
  Tensor normal(Shape, uint64_t seed);                        // bf16, N(0, 1)
  Tensor uniform(Shape, uint64_t seed, float low, float high);  // f32

 private:
  std::vector<Buffer> buffers_;
};

// k of `keys` keys per query, one from each of k equal ranges; `shared` of ten ranges draw alike for 64 neighbouring queries.
Selection spread_selection(Memory&, int64_t queries, int64_t k, int64_t keys, int shared);

// Elements [first, first + count) of a device tensor, on the host.
template <typename T>
std::vector<T> download(const Tensor& t, int64_t first, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  copy_bytes(host.data(), {}, t.data<T>() + first, kCuda, host.size() * sizeof(T), {});
  synchronize(kCuda, {});
  return host;
}
std::vector<double> download_bf16(const Tensor&, int64_t first, int64_t count);
// ||result - expected|| / ||expected||; infinite where the result is not finite.
double relative_error(const std::vector<double>& result, const std::vector<double>& expected);
// Of a bf16 result against f64: right below 1e-2.
std::string verdict(double error);

// Median milliseconds of one call; runs after a pause and one call that is not timed. The card lowers its clock under load and
// takes a while to raise it again: without the pause, a time would depend on what ran before.
double median_ms(const std::function<void()>&, int runs);

// TFLOP/s of a bf16 GEMM of 8192^3 through cuBLASLt, called as often as takes `milliseconds`, by median_ms of 3 such runs: a kernel
// is compared with what cuBLAS reaches over the same duration in the same state of the card.
double sustained_gemm_rate(double milliseconds);

struct Row {
  std::string name, check;
  double ms = 0, tflop = 0, gigabytes = 0;  // work of one call
  size_t extra_bytes = 0;                   // memory beyond inputs and result
  double gemm_rate = 0;                     // sustained cuBLAS rate over `ms`
};
void print_table(const std::vector<Row>&);
nlohmann::json to_json(const std::vector<Row>&);

// Time by range of an op, exclusive of what it calls, in milliseconds; by events on the default stream.
std::map<std::string, double> profile(const std::function<void()>& work);

// The way of today's systems for selection: scores by cuBLAS in chunks of `rows` queries into a table, head reduction, radix
// select; keys beyond what a chunk sees are not scored. q bf16 [T, H, D], keys bf16 [N, D], weights f32 [T, H] or absent,
// end i32 [T] on the device and `visible` the same on the host; indices i32 [T, k].
struct TableSelect {
  Tensor q, keys, weights, end;
  std::vector<int32_t> visible;
  Tensor indices;
  int64_t rows = 64;
  Tensor scores, reduced, gemm_space;  // made by make_table
};
void make_table(TableSelect&, Memory&);
void table_select(const TableSelect&);

// Cases whose name contains `only`; `kinds`: inputs of many kinds at odd sizes instead of the usual ones.
std::vector<Row> topk_benchmark(bool quick, bool kinds, const std::string& only);
std::vector<Row> dense_benchmark(bool quick);
std::vector<Row> delta_benchmark(bool quick);
// GLM's latent shape with 64K and 1M rows, ids random and of neighbours that share; `loss`: of the index loss instead.
std::vector<Row> attention_benchmark(int64_t queries, bool loss);
// The same for block attention at Qwen3.8's shape.
std::vector<Row> block_attention_benchmark(int64_t queries);
// A layer of `family` (glm, deepseek_v4, qwen) as one rank of `ranks` runs it on a sequence of `tokens`: forward, recomputation, backward;
// also on choices of which neighbours share the part `overlap`.
std::vector<Row> layer_benchmark(const std::string& family, int64_t tokens, int ranks, double overlap);

}  // namespace hyscale::bench
