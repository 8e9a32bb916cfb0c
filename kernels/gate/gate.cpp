#include "kernels/gate/gate.h"

#include <cmath>

#include "kernels/common/op.h"

namespace hyscale {

void gate_cuda(const Gate&);
void gate_backward_cuda(const GateBackward&);

namespace {

struct Activated {
  float value, slope;
};
Activated activate(GateActivation a, float g) {
  const float s = 1 / (1 + std::exp(-g));
  return a == GateActivation::sigmoid ? Activated{s, s * (1 - s)} : Activated{g * s, s * (1 + g * (1 - s))};
}

float* row(const Tensor& t, int64_t token, int64_t head) { return t.f32() + token * t.stride(0) + head * t.stride(1); }

void gate_ref(const Gate& g) {
  const int64_t tokens = g.x.size(0), heads = g.x.size(1), dims = g.x.size(2), step = g.gate.size(2) == 1 ? 0 : 1;
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const float *x = row(g.x, t, h), *gates = row(g.gate, t, h);
      float* y = row(g.y, t, h);
      for (int64_t d = 0; d < dims; ++d) y[d] = x[d] * activate(g.activation, gates[d * step]).value;
    }
}

void gate_backward_ref(const GateBackward& g) {
  const int64_t tokens = g.x.size(0), heads = g.x.size(1), dims = g.x.size(2);
  const bool per_row = g.gate.size(2) == 1;
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const float *x = row(g.x, t, h), *gates = row(g.gate, t, h), *dy = row(g.dy, t, h);
      float *dx = row(g.dx, t, h), *dgate = row(g.dgate, t, h);
      double sum = 0;
      for (int64_t d = 0; d < dims; ++d) {
        const Activated a = activate(g.activation, gates[per_row ? 0 : d]);
        const float slope = dy[d] * x[d] * a.slope;
        dx[d] = dy[d] * a.value;
        sum += slope;
        if (!per_row) dgate[d] = slope;
      }
      if (per_row) dgate[0] = static_cast<float>(sum);
    }
}

void check_gate(const Tensor& x, const Tensor& gate) {
  HYSCALE_CHECK(x.rank() == 3, "x ", to_string(x));
  HYSCALE_CHECK(gate.rank() == 3 && gate.size(0) == x.size(0) && gate.size(1) == x.size(1) && (gate.size(2) == x.size(2) || gate.size(2) == 1), "gate ", to_string(gate),
                ", x ", to_string(x));
}

}  // namespace

void gate(const Gate& g) {
  check_gate(g.x, g.gate);
  check_shape(g.y, "y", g.x.shape());
  HYSCALE_DISPATCH("gate", g.x.device(), gate_ref(g), gate_cuda(g));
}

void gate_backward(const GateBackward& g) {
  check_gate(g.x, g.gate);
  check_shape(g.dy, "dy", g.x.shape());
  check_shape(g.dx, "dx", g.x.shape());
  check_shape(g.dgate, "dgate", g.gate.shape());
  HYSCALE_DISPATCH("gate_backward", g.x.device(), gate_backward_ref(g), gate_backward_cuda(g));
}

}  // namespace hyscale
