// One warp per row. The gates may have a dtype of their own.
#include "kernels/common/head_rows.cuh"
#include "kernels/gate/gate.h"

namespace hyscale {
namespace {

constexpr int kWarps = 8;

struct Activated {
  float value, slope;
};
__device__ __forceinline__ Activated activate(GateActivation a, float g) {
  const float s = 1 / (1 + __expf(-g));
  return a == GateActivation::sigmoid ? Activated{s, s * (1 - s)} : Activated{g * s, s * (1 + g * (1 - s))};
}

// One gate for the row, or those of the pack.
template <typename G, int kWidth>
__device__ __forceinline__ void load_gates(const G* gates, bool per_row, int64_t d, float (&to)[kWidth]) {
  if (!per_row) return load_pack(gates + d, to);
  const float gate = to_f32(gates[0]);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) to[i] = gate;
}

struct Sizes {
  int64_t rows, heads, dims;
  bool per_row;
  GateActivation activation;
  template <typename Op>
  explicit Sizes(const Op& g) : rows(g.x.size(0) * g.x.size(1)), heads(g.x.size(1)), dims(g.x.size(2)), per_row(g.gate.size(2) == 1), activation(g.activation) {}
};

// y may be x.
template <typename T, typename G, int kWidth>
__global__ void gate_kernel(HeadRows<T> xs, HeadRows<G> gates, HeadRows<T> ys, Sizes n) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; row < n.rows; row += static_cast<int64_t>(gridDim.x) * kWarps) {
    const T* x = xs.row(row, n.heads);
    const G* gate = gates.row(row, n.heads);
    T* y = ys.row(row, n.heads);
    for (int64_t d = lane * kWidth; d < n.dims; d += 32 * kWidth) {
      float v[kWidth], g[kWidth];
      load_pack(x + d, v);
      load_gates(gate, n.per_row, d, g);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v[i] *= activate(n.activation, g[i]).value;
      store_pack(y + d, v);
    }
  }
}

// dx may be dy.
template <typename T, typename G, int kWidth>
__global__ void gate_backward_kernel(HeadRows<T> xs, HeadRows<G> gates, HeadRows<T> dys, HeadRows<T> dxs, HeadRows<G> dgates, Sizes n) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; row < n.rows; row += static_cast<int64_t>(gridDim.x) * kWarps) {
    const T *x = xs.row(row, n.heads), *dy = dys.row(row, n.heads);
    const G* gate = gates.row(row, n.heads);
    T* dx = dxs.row(row, n.heads);
    G* dgate = dgates.row(row, n.heads);
    float sum = 0;
    for (int64_t d = lane * kWidth; d < n.dims; d += 32 * kWidth) {
      float v[kWidth], g[kWidth], grad[kWidth];
      load_pack(x + d, v);
      load_gates(gate, n.per_row, d, g);
      load_pack(dy + d, grad);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const Activated a = activate(n.activation, g[i]);
        g[i] = grad[i] * v[i] * a.slope;
        grad[i] *= a.value;
        sum += g[i];
      }
      store_pack(dx + d, grad);
      if (!n.per_row) store_pack(dgate + d, g);
    }
    if (!n.per_row) continue;
    sum = warp_sum(sum);
    if (lane == 0) dgate[0] = from_f32<G>(sum);
  }
}

// Calls function(T{}, G{}) with the dtypes of x and of the gates.
template <typename Op, typename Function>
void with_types(const Op& g, const char* op, Function function) {
  with_float_type(g.x.dtype(), op, [&](auto type) { with_float_type(g.gate.dtype(), op, [&](auto gate_type) { function(type, gate_type); }); });
}

}  // namespace

void gate_cuda(const Gate& g) {
  const Sizes n(g);
  if (g.x.elements() == 0) return;
  with_types(g, "gate", [&](auto type, auto gate_type) {
    using T = decltype(type);
    using G = decltype(gate_type);
    const auto launch = [&](auto kernel) {
      kernel<<<grid_for(n.rows, kWarps), kWarps * 32, 0, stream_of(g.stream)>>>(HeadRows<T>(g.x), HeadRows<G>(g.gate), HeadRows<T>(g.y), n);
    };
    common_pack(n.dims, g.x, n.per_row ? Tensor() : g.gate, g.y) == 8 ? launch(gate_kernel<T, G, 8>) : launch(gate_kernel<T, G, 1>);
  });
  check_launch("gate");
}

void gate_backward_cuda(const GateBackward& g) {
  const Sizes n(g);
  if (n.rows == 0) return;
  HYSCALE_CHECK(g.dgate.dtype() == g.gate.dtype(), "dgate ", to_string(g.dgate), ", gate ", to_string(g.gate));
  with_types(g, "gate_backward", [&](auto type, auto gate_type) {
    using T = decltype(type);
    using G = decltype(gate_type);
    const auto launch = [&](auto kernel) {
      kernel<<<grid_for(n.rows, kWarps), kWarps * 32, 0, stream_of(g.stream)>>>(HeadRows<T>(g.x), HeadRows<G>(g.gate), HeadRows<T>(g.dy), HeadRows<T>(g.dx), HeadRows<G>(g.dgate), n);
    };
    common_pack(n.dims, g.x, n.per_row ? Tensor() : g.gate, g.dy, g.dx, n.per_row ? Tensor() : g.dgate) == 8 ? launch(gate_backward_kernel<T, G, 8>)
                                                                                                            : launch(gate_backward_kernel<T, G, 1>);
  });
  check_launch("gate_backward");
}

}  // namespace hyscale
