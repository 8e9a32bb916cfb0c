#include "kernels/grad_norm/grad_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/op.h"

namespace hyscale {

void sum_of_squares_cuda(const SumOfSquares&);
void clip_gate_cuda(const ClipGate&);

namespace {

void sum_of_squares_ref(const SumOfSquares& s) {
  constexpr int64_t kBlock = 1 << 16;  // sums of blocks are added in order, so threads do not matter
  const int64_t n = s.x.elements(), blocks = (n + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<size_t>(blocks));
#pragma omp parallel for
  for (int64_t b = 0; b < blocks; ++b) {
    const float* x = s.x.f32() + b * kBlock;
    const int64_t count = std::min(kBlock, n - b * kBlock);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) sum += double{x[i]} * x[i];
    sums[static_cast<size_t>(b)] = sum;
  }
  for (double sum : sums) s.sum.data<double>()[0] += sum;
}

void clip_gate_ref(const ClipGate& c) {
  bool finite = std::isfinite(c.sum.data<double>()[0]);
  for (const Tensor& t : c.must_be_finite)
    for (int64_t i = 0; t.defined() && i < t.elements(); ++i) finite = finite && std::isfinite(t.data<double>()[i]);
  bool open = finite;
  for (const UpperBound& b : c.bounds) open = open && !(b.value.defined() && b.value.data<double>()[0] > b.most);
  const double norm = std::sqrt(c.sum.data<double>()[0]);
  c.gate.f32()[0] = !open ? 0 : c.max_norm == 0 ? 1 : static_cast<float>(std::min(1.0, c.max_norm / (norm + 1e-6)));
  c.gate.f32()[1] = open ? 1 : 0;
}

}  // namespace

void sum_of_squares(const SumOfSquares& s) {
  check_tensor(s.sum, "sum", DType::f64, {1});
  HYSCALE_CHECK(s.x.dtype() == DType::f32 && s.x.is_contiguous(), "x is ", to_string(s.x));
  HYSCALE_DISPATCH("sum_of_squares", s.x.device(), sum_of_squares_ref(s), sum_of_squares_cuda(s));
}

size_t sum_of_squares_workspace_bytes(const SumOfSquares& s) { return s.x.device().is_cpu() ? 0 : aligned_bytes(1024 * sizeof(double)); }

void clip_gate(const ClipGate& c) {
  check_tensor(c.sum, "sum", DType::f64, {1});
  for (const Tensor& t : c.must_be_finite)
    if (t.defined()) check_tensor(t, "must_be_finite", DType::f64, {-1});
  for (const UpperBound& b : c.bounds)
    if (b.value.defined()) check_tensor(b.value, "bounded value", DType::f64, {1});
  check_tensor(c.gate, "gate", DType::f32, {2});
  HYSCALE_DISPATCH("clip_gate", c.sum.device(), clip_gate_ref(c), clip_gate_cuda(c));
}

}  // namespace hyscale
