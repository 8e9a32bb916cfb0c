// What every benchmark shares: device memory, made-up data, timing, the rate that cuBLAS sustains, and the table.
#pragma once
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/tensor.h"

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

// Median milliseconds of one call; runs after one call that is not timed.
double median_ms(const std::function<void()>&, int runs);

// TFLOP/s that a bf16 GEMM of 8192^3 through cuBLASLt sustains over `milliseconds`. The card lowers its clock under load, so a
// kernel is compared with what cuBLAS reaches over the same duration in the same run.
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
