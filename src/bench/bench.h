// What every benchmark shares: device memory, made-up data, timing, the rate that cuBLAS sustains, and the table.
#pragma once
#include <functional>
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

std::vector<Row> topk_benchmark(bool quick);

}  // namespace hyscale::bench
