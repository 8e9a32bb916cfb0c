#include "kernels/gated_delta/delta_states.h"

#include "kernels/common/op.h"
#include "kernels/gated_delta/gated_delta_cuda.h"
#include "kernels/gated_delta/gated_delta_ref.h"

namespace hyscale {
namespace {

void check_heads(const Tensor& x, const char* what, const Shape& shape) {
  check_shape(x, what, shape);
  HYSCALE_CHECK(x.size(2) == 0 || x.stride(2) == 1, what, " ", to_string(x), ": the last dimension is dense");
}

// values: v, or what has its shape.
template <typename Op>
void check_inputs(const Op& g, const Tensor& values, const char* what) {
  HYSCALE_CHECK(g.k.rank() == 3 && values.rank() == 3, "k ", to_string(g.k), ", ", what, " ", to_string(values));
  check_heads(g.k, "k", g.k.shape());
  check_heads(values, what, {g.k.size(0), values.size(1), values.size(2)});
  HYSCALE_CHECK(values.size(1) % g.k.size(1) == 0, values.size(1), " value heads, ", g.k.size(1), " key heads");
  check_tensor(g.log_decay, "log_decay", DType::f32, {values.size(0), values.size(1)});
  check_tensor(g.beta, "beta", DType::f32, g.log_decay.shape());
  HYSCALE_CHECK(g.chunk >= 1, "chunk ", g.chunk);
}

template <typename Op>
void check_carried(const Op& g, const CarriedStates& c, const char* what) {
  check_tensor(c.states, what, DType::f32, {-1, g.v.size(1), g.k.size(2), g.v.size(2)});
  check_tensor(c.of_document, "of_document", DType::i32, {g.document_starts.size(0) - 1});
}

}  // namespace

void delta_map(const DeltaMap& g) {
  check_inputs(g, g.v, "v");
  if (g.map.defined()) check_tensor(g.map, "map", DType::f32, {g.v.size(1), g.k.size(2), g.k.size(2)});
  check_tensor(g.state, "state", DType::f32, {g.v.size(1), g.k.size(2), g.v.size(2)});
  HYSCALE_DISPATCH("delta_map", g.k.device(), delta_map_ref(g), delta_map_cuda(g));
}

size_t delta_map_workspace_bytes(const DeltaMap& g) {
#ifdef HYSCALE_HAS_CUDA
  if (g.k.device().is_cuda() || g.k.dtype() != DType::f32) return delta_map_cuda_workspace_bytes(g);
#endif
  return delta_map_ref_workspace_bytes(g);
}

void delta_map_backward(const DeltaMapBackward& g) {
  check_inputs(g, g.dout, "dout");
  check_heads(g.q, "q", g.k.shape());
  check_tensor(g.dstate, "dstate", DType::f32, {g.dout.size(1), g.k.size(2), g.dout.size(2)});
  HYSCALE_DISPATCH("delta_map_backward", g.k.device(), delta_map_backward_ref(g), delta_map_backward_cuda(g));
}

size_t delta_map_backward_workspace_bytes(const DeltaMapBackward& g) {
#ifdef HYSCALE_HAS_CUDA
  if (g.k.device().is_cuda() || g.k.dtype() != DType::f32) return delta_map_backward_cuda_workspace_bytes(g);
#endif
  return delta_map_backward_ref_workspace_bytes(g);
}

void gated_delta_carried(const GatedDelta& g, const CarriedStates& before) {
  check_inputs(g, g.v, "v");
  check_heads(g.q, "q", g.k.shape());
  check_heads(g.o, "o", g.v.shape());
  check_carried(g, before, "states before");
  HYSCALE_DISPATCH("gated_delta_carried", g.q.device(), gated_delta_ref(g, before),
                   gated_delta_chunks_fit(g) ? gated_delta_chunks(g, before) : gated_delta_plain(g, before));
}

void gated_delta_carried_backward(const GatedDeltaBackward& g, const CarriedStates& before, const CarriedStates& dbehind) {
  check_inputs(g, g.v, "v");
  for (const auto& [tensor, what] : {std::pair{&g.q, "q"}, {&g.dq, "dq"}, {&g.dk, "dk"}}) check_heads(*tensor, what, g.k.shape());
  for (const auto& [tensor, what] : {std::pair{&g.dout, "dout"}, {&g.dv, "dv"}}) check_heads(*tensor, what, g.v.shape());
  check_tensor(g.dlog_decay, "dlog_decay", DType::f32, g.log_decay.shape());
  check_tensor(g.dbeta, "dbeta", DType::f32, g.log_decay.shape());
  check_carried(g, before, "states before");
  check_carried(g, dbehind, "gradients of states behind");
  HYSCALE_DISPATCH("gated_delta_carried_backward", g.q.device(), gated_delta_backward_ref(g, before, dbehind),
                   gated_delta_chunks_fit(g) ? gated_delta_chunks(g, before, dbehind) : gated_delta_backward_plain(g, before, dbehind));
}

}  // namespace hyscale
