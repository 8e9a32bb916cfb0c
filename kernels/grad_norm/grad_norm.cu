#include "kernels/common/cuda.cuh"
#include "kernels/common/op.h"
#include "kernels/grad_norm/grad_norm.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256, kParts = 1024;

__global__ void squares_kernel(const float* __restrict__ x, int64_t count, double* __restrict__ parts) {
  double sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += static_cast<int64_t>(kParts) * kThreads) {
    const double v = x[i];
    sum += v * v;
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void add_parts_kernel(const double* __restrict__ parts, double* sum) {
  double part = 0;
  for (int i = threadIdx.x; i < kParts; i += kThreads) part += parts[i];
  part = block_sum<kThreads>(part);
  if (threadIdx.x == 0) *sum += part;
}

struct Bounds {
  const double* values[3];
  double most[3];
};

__global__ void clip_gate_kernel(const double* sum, const double* a, int64_t num_a, const double* b, int64_t num_b, Bounds bounds, float max_norm, float* gate) {
  bool open = isfinite(*sum);
  for (int64_t i = 0; i < num_a; ++i) open = open && isfinite(a[i]);
  for (int64_t i = 0; i < num_b; ++i) open = open && isfinite(b[i]);
  for (int i = 0; i < 3; ++i) open = open && !(bounds.values[i] && *bounds.values[i] > bounds.most[i]);
  const double norm = sqrt(*sum);
  gate[0] = !open ? 0 : max_norm == 0 ? 1 : static_cast<float>(fmin(1.0, max_norm / (norm + 1e-6)));
  gate[1] = open ? 1 : 0;
}

}  // namespace

void sum_of_squares_cuda(const SumOfSquares& s) {
  if (s.x.elements() == 0) return;
  Workspace workspace(s.workspace);
  double* parts = workspace.take<double>(kParts);
  squares_kernel<<<kParts, kThreads, 0, stream_of(s.stream)>>>(s.x.f32(), s.x.elements(), parts);
  add_parts_kernel<<<1, kThreads, 0, stream_of(s.stream)>>>(parts, s.sum.data<double>());
  check_launch("sum_of_squares");
}

void clip_gate_cuda(const ClipGate& c) {
  const auto pointer = [](const Tensor& t) { return t.defined() ? t.data<double>() : nullptr; };
  const auto count = [](const Tensor& t) { return t.defined() ? t.elements() : 0; };
  const Tensor &a = c.must_be_finite[0], &b = c.must_be_finite[1];
  Bounds bounds{};
  for (size_t i = 0; i < c.bounds.size(); ++i) bounds.values[i] = pointer(c.bounds[i].value), bounds.most[i] = c.bounds[i].most;
  clip_gate_kernel<<<1, 1, 0, stream_of(c.stream)>>>(c.sum.data<double>(), pointer(a), count(a), pointer(b), count(b), bounds, c.max_norm, c.gate.f32());
  check_launch("clip_gate");
}

}  // namespace hyscale
