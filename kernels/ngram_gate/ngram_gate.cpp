#include "kernels/ngram_gate/ngram_gate.h"

#include <cmath>

#include "kernels/common/op.h"

namespace hyscale {

void ngram_gate_cuda(const NgramGate&);
void ngram_gate_backward_cuda(const NgramGateBackward&);

namespace {

constexpr float kLeast = 1e-6f;

// sign(0) is 0.
float gate_of(float u) {
  const float root = std::sqrt(std::max(std::abs(u), kLeast));
  return 1 / (1 + std::exp(u > 0 ? -root : u < 0 ? root : 0));
}

struct Sizes {
  int64_t tokens, streams, columns;
  float scale;
  explicit Sizes(const Tensor& keys) : tokens(keys.size(0)), streams(keys.size(1)), columns(keys.size(2)), scale(1 / std::sqrt(static_cast<float>(columns))) {}
};

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

void ngram_gate_ref(const NgramGate& g) {
  const Sizes n(g.keys);
#pragma omp parallel for
  for (int64_t row = 0; row < n.tokens * n.streams; ++row) {
    const float u = g.scores.f32()[row] = n.scale * static_cast<float>(dot(g.keys.f32() + row * n.columns, g.queries.f32() + row * n.columns, n.columns));
    const float share = gate_of(u);
    const float* value = g.values.f32() + row / n.streams * n.columns;
    float* out = g.out.f32() + row * n.columns;
    for (int64_t c = 0; c < n.columns; ++c) out[c] = share * value[c];
  }
}

void ngram_gate_backward_ref(const NgramGateBackward& g) {
  const Sizes n(g.keys);
#pragma omp parallel for
  for (int64_t t = 0; t < n.tokens; ++t) {
    const float* value = g.values.f32() + t * n.columns;
    float* dvalue = g.dvalues.f32() + t * n.columns;
    for (int64_t i = 0; i < n.streams; ++i) {
      const int64_t row = t * n.streams + i, at = row * n.columns;
      const float u = g.scores.f32()[row], share = gate_of(u);
      const float dshare = static_cast<float>(dot(g.dout.f32() + at, value, n.columns));
      const float du = std::abs(u) > kLeast ? n.scale * dshare * share * (1 - share) / (2 * std::sqrt(std::abs(u))) : 0;
      for (int64_t c = 0; c < n.columns; ++c) {
        dvalue[c] = (i == 0 ? 0 : dvalue[c]) + share * g.dout.f32()[at + c];
        g.dkeys.f32()[at + c] = du * g.queries.f32()[at + c];
        g.dqueries.f32()[at + c] = du * g.keys.f32()[at + c];
      }
    }
  }
}

void check_gate(const Tensor& keys, const Tensor& queries, const Tensor& values, const Tensor& scores, const Tensor& out) {
  HYSCALE_CHECK(keys.rank() == 3 && keys.is_contiguous() && queries.is_contiguous() && values.is_contiguous() && out.is_contiguous(), "keys ", to_string(keys));
  check_shape(queries, "queries", keys.shape());
  check_shape(values, "values", {keys.size(0), keys.size(2)});
  check_tensor(scores, "scores", DType::f32, {keys.size(0), keys.size(1)});
  check_shape(out, "out", keys.shape());
}

}  // namespace

void ngram_gate(const NgramGate& g) {
  check_gate(g.keys, g.queries, g.values, g.scores, g.out);
  HYSCALE_DISPATCH("ngram_gate", g.keys.device(), ngram_gate_ref(g), ngram_gate_cuda(g));
}

void ngram_gate_backward(const NgramGateBackward& g) {
  check_gate(g.keys, g.queries, g.values, g.scores, g.dout);
  check_shape(g.dkeys, "dkeys", g.keys.shape());
  check_shape(g.dqueries, "dqueries", g.keys.shape());
  check_shape(g.dvalues, "dvalues", g.values.shape());
  HYSCALE_DISPATCH("ngram_gate_backward", g.keys.device(), ngram_gate_backward_ref(g), ngram_gate_backward_cuda(g));
}

}  // namespace hyscale
