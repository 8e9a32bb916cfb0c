#include "kernels/newton_schulz/newton_schulz.h"

#include <algorithm>
#include <cmath>

#include "core/memory.h"
#include "kernels/common/op.h"
#include "kernels/gemm/gemm.h"
#include "kernels/grad_norm/grad_norm.h"

namespace hyscale {

void divide_by_norms_cuda(const Tensor& x, const Tensor& g, const Tensor& squares, Stream);

namespace {

// x[b] = g[b] / sqrt(squares[b]).
void divide_by_norms_ref(const Tensor& x, const Tensor& g, const Tensor& squares) {
  const int64_t n = g.size(1) * g.size(2);
  for (int64_t b = 0; b < g.size(0); ++b) {
    const double sum = squares.data<double>()[b];
    const float inverse = sum > 0 ? static_cast<float>(1 / std::sqrt(sum)) : 0;
    const float* from = g.f32() + b * g.stride(0);
    float* to = x.f32() + b * n;
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; ++i) to[i] = inverse * from[i];
  }
}

void divide_by_norms(const Tensor& x, const Tensor& g, const Tensor& squares, [[maybe_unused]] Stream stream) {
  HYSCALE_DISPATCH("divide_by_norms", g.device(), divide_by_norms_ref(x, g, squares), divide_by_norms_cuda(x, g, squares, stream));
}

SumOfSquares sum_of_matrix(const NewtonSchulz& n, int64_t b, const Tensor& squares, const Tensor& space) {
  const Tensor matrix = n.g.select(0, b);
  return {matrix, squares.slice(0, b, b + 1), space, n.stream};
}

struct Pieces {
  Tensor squares, sum_space, other, gram, polynomial, gemm;
};
// On meta only the count matters.
Pieces take_pieces(const NewtonSchulz& n, size_t* bytes) {
  const int64_t batch = n.g.size(0), side = std::min(n.g.size(1), n.g.size(2));
  const Device device = n.g.device();
  size_t used = 0;
  const auto take = [&](DType dtype, Shape shape) {
    char* base = n.workspace.defined() ? static_cast<char*>(n.workspace.raw()) : nullptr;
    const Tensor t(base ? base + used : nullptr, dtype, device, shape);
    used += aligned_bytes(t.bytes());
    return t;
  };
  Pieces p;
  p.squares = take(DType::f64, {batch});
  p.sum_space = take(DType::u8, {static_cast<int64_t>(sum_of_squares_workspace_bytes({n.g, p.squares, {}, {}}))});
  p.other = take(n.x.dtype(), n.x.shape());
  p.gram = take(n.x.dtype(), {batch, side, side});
  p.polynomial = take(n.x.dtype(), {batch, side, side});
  p.gemm = take(DType::u8, {n.x.dtype() == DType::bf16 || device.is_cuda() ? kGemmWorkspaceBytes : 0});  // f32 on meta stands for the CPU
  *bytes = used;
  return p;
}

// to = a from + (b A + c A A) from, or with `from` to the left where that makes A smaller.
void iterate(const NewtonSchulz& n, const NewtonSchulzStep& s, const Pieces& p, const Tensor& from, const Tensor& to) {
  const bool tall = from.size(1) > from.size(2);
  const auto product = [&](const Tensor& a, const Tensor& b, const Tensor& c, bool transpose_a, bool transpose_b, float alpha, float beta) {
    gemm({.a = a, .b = b, .c = c, .transpose_a = transpose_a, .transpose_b = transpose_b, .alpha = alpha, .beta = beta, .workspace = p.gemm, .stream = n.stream});
  };
  product(from, from, p.gram, tall, !tall, 1, 0);
  copy(p.polynomial, p.gram, n.stream);
  product(p.gram, p.gram, p.polynomial, false, false, s.c, s.b);
  copy(to, from, n.stream);
  tall ? product(from, p.polynomial, to, false, false, 1, s.a) : product(p.polynomial, from, to, false, false, 1, s.a);
}

}  // namespace

void newton_schulz(const NewtonSchulz& n) {
  HYSCALE_CHECK(n.g.rank() == 3 && n.g.dtype() == DType::f32 && n.g.stride(2) == 1 && n.g.stride(1) == n.g.size(2), "g is ", to_string(n.g));
  check_shape(n.x, "x", n.g.shape());
  HYSCALE_CHECK(n.x.is_contiguous() && n.x.device() == n.g.device(), "x is ", to_string(n.x), ", g is ", to_string(n.g));
  if (n.g.elements() == 0) return;
  size_t bytes = 0;
  const Pieces p = take_pieces(n, &bytes);
  HYSCALE_CHECK(n.workspace.defined() && n.workspace.bytes() >= bytes, "workspace is ", to_string(n.workspace), "; needed are ", bytes, " bytes");
  zero(p.squares, n.stream);
  for (int64_t b = 0; b < n.g.size(0); ++b) sum_of_squares(sum_of_matrix(n, b, p.squares, p.sum_space));
  // Each step reads one of two buffers and writes the other; the last writes x.
  Tensor from = n.steps.size() % 2 ? p.other : n.x, to = n.steps.size() % 2 ? n.x : p.other;
  divide_by_norms(from, n.g, p.squares, n.stream);
  for (const NewtonSchulzStep& step : n.steps) {
    iterate(n, step, p, from, to);
    std::swap(from, to);
  }
}

size_t newton_schulz_workspace_bytes(const NewtonSchulz& n) {
  size_t bytes = 0;
  NewtonSchulz bare = n;
  bare.workspace = {};
  take_pieces(bare, &bytes);
  return bytes;
}

}  // namespace hyscale
