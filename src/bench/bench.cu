#include "bench/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>

#include "core/range.h"
#include "kernels/common/cuda.cuh"
#include "kernels/gemm/gemm.h"

namespace hyscale::bench {
namespace {

__device__ uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__global__ void normal_kernel(bf16* to, int64_t count, uint64_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint64_t z = mix(static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull + seed);
    const float u = static_cast<float>((z & 0xffffff) + 1) / 16777217.f, v = static_cast<float>(z >> 24 & 0xffffff) / 16777216.f;
    to[i] = __float2bfloat16(sqrtf(-2 * logf(u)) * cospif(2 * v));
  }
}

__global__ void uniform_kernel(float* to, int64_t count, uint64_t seed, float low, float high) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    to[i] = low + (high - low) * (static_cast<float>(mix(static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull + seed) >> 40) / 16777216.f);
}

__global__ void selection_kernel(int32_t* indices, int32_t* counts, int64_t k, int64_t keys, int shared) {
  const int64_t t = blockIdx.x, range = keys / k;
  for (int64_t j = threadIdx.x; j < k; j += blockDim.x) {
    const uint64_t owner = j % 10 < shared ? static_cast<uint64_t>(t / 64) : static_cast<uint64_t>(t) + (uint64_t{1} << 40);
    indices[t * k + j] = static_cast<int32_t>(j * range + static_cast<int64_t>(mix(owner * 4096 + static_cast<uint64_t>(j) + 0x9E3779B97F4A7C15ull) % static_cast<uint64_t>(range)));
  }
  if (threadIdx.x == 0) counts[t] = static_cast<int32_t>(k);
}

class Events {
 public:
  Events() { cudaEventCreate(&start_), cudaEventCreate(&stop_); }
  ~Events() { cudaEventDestroy(start_), cudaEventDestroy(stop_); }
  double time(const std::function<void()>& work) {
    cudaEventRecord(start_);
    work();
    cudaEventRecord(stop_);
    check_cuda(cudaEventSynchronize(stop_), "benchmark");
    float ms = 0;
    cudaEventElapsedTime(&ms, start_, stop_);
    return ms;
  }

 private:
  cudaEvent_t start_, stop_;
};

}  // namespace

Tensor Memory::make(DType dtype, Shape shape, const char* purpose) {
  buffers_.emplace_back(kCuda, std::max<size_t>(256, static_cast<size_t>(shape.elements()) * dtype_bytes(dtype)), purpose);
  return Tensor(buffers_.back().data(), dtype, kCuda, shape);
}
Tensor Memory::normal(Shape shape, uint64_t seed) {
  const Tensor t = make(DType::bf16, shape, "benchmark input");
  normal_kernel<<<2048, 256>>>(t.data<bf16>(), t.elements(), seed);
  return t;
}
Tensor Memory::uniform(Shape shape, uint64_t seed, float low, float high) {
  const Tensor t = make(DType::f32, shape, "benchmark input");
  uniform_kernel<<<2048, 256>>>(t.f32(), t.elements(), seed, low, high);
  return t;
}

Selection spread_selection(Memory& memory, int64_t queries, int64_t k, int64_t keys, int shared) {
  const Selection s{memory.make(DType::i32, {queries, k}, "indices"), memory.make(DType::i32, {queries}, "counts")};
  selection_kernel<<<static_cast<unsigned>(queries), 256>>>(s.indices.i32(), s.counts.i32(), k, keys, shared);
  return s;
}

std::vector<double> download_bf16(const Tensor& t, int64_t first, int64_t count) {
  std::vector<double> numbers;
  for (uint16_t bits : download<uint16_t>(t, first, count)) numbers.push_back(bf16_to_float(bits));
  return numbers;
}

double relative_error(const std::vector<double>& result, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) difference += std::pow(result[i] - expected[i], 2), norm += expected[i] * expected[i];
  return std::isfinite(difference) ? std::sqrt(difference / norm) : INFINITY;
}

std::string verdict(double error) {
  char text[64];
  std::snprintf(text, sizeof text, "%s: relative error %.1e", error < 1e-2 ? "right" : "WRONG", error);
  return text;
}

double median_ms(const std::function<void()>& work, int runs) {
  synchronize(kCuda, {});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  Events events;
  events.time(work);
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) times.push_back(events.time(work));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double sustained_gemm_rate(double milliseconds) {
  static Memory memory;
  constexpr int64_t n = 8192;
  static const Tensor a = memory.normal({n, n}, 11), b = memory.normal({n, n}, 12), c = memory.make(DType::bf16, {n, n}, "gemm result"),
                      space = memory.make(DType::u8, {kGemmWorkspaceBytes}, "gemm workspace");
  const auto product = [] { gemm({.a = a, .b = b, .c = c, .transpose_b = true, .workspace = space}); };
  Events events;
  const double one = events.time([&] { product(); }) > 0 ? events.time([&] { product(); }) : 1;
  const int count = std::max(1, static_cast<int>(milliseconds / one + 0.5));
  const auto burst = [&] {
    for (int i = 0; i < count; ++i) product();
  };
  const double ms = median_ms(burst, 3);
  return 2.0 * n * n * n * count / ms / 1e9;
}

std::map<std::string, double> profile(const std::function<void()>& work) {
  struct Mark {
    cudaEvent_t event;
    std::string owner;  // of the time from here to the next mark
  };
  std::vector<Mark> marks;
  std::vector<std::string> stack{"between ops"};
  const auto mark = [&] {
    marks.push_back({nullptr, stack.back()});
    cudaEventCreate(&marks.back().event);
    cudaEventRecord(marks.back().event);
  };
  mark();
  observe_ranges([&](const char* name, bool enters) {
    if (enters) stack.push_back(name);
    else stack.pop_back();
    mark();
  });
  work();
  observe_ranges({});
  mark();
  check_cuda(cudaEventSynchronize(marks.back().event), "profile");
  std::map<std::string, double> ms;
  for (size_t i = 0; i + 1 < marks.size(); ++i) {
    float part = 0;
    cudaEventElapsedTime(&part, marks[i].event, marks[i + 1].event);
    ms[marks[i].owner] += part;
  }
  for (const Mark& m : marks) cudaEventDestroy(m.event);
  return ms;
}

void print_table(const std::vector<Row>& rows) {
  std::printf("%-44s %10s %9s %8s %9s %11s  %s\n", "case", "ms", "TFLOP/s", "of gemm", "GB/s", "extra MiB", "check");
  for (const Row& r : rows)
    std::printf("%-44s %10.2f %9.0f %7.1f%% %9.0f %11.1f  %s\n", r.name.c_str(), r.ms, r.tflop / r.ms * 1e3, r.gemm_rate > 0 ? 100 * r.tflop / r.ms * 1e3 / r.gemm_rate : 0.0,
                r.gigabytes / r.ms * 1e3, static_cast<double>(r.extra_bytes) / (1 << 20), r.check.c_str());
}

nlohmann::json to_json(const std::vector<Row>& rows) {
  nlohmann::json all = nlohmann::json::array();
  for (const Row& r : rows)
    all.push_back({{"name", r.name}, {"ms", r.ms}, {"tflops", r.tflop / r.ms * 1e3}, {"gemm_tflops", r.gemm_rate}, {"gbytes_per_s", r.gigabytes / r.ms * 1e3},
                   {"extra_bytes", r.extra_bytes}, {"check", r.check}});
  return all;
}

}  // namespace hyscale::bench
