#include "kernels/gated_delta/gated_delta.h"

#include "kernels/common/op.h"
#include "kernels/gated_delta/gated_delta_cuda.h"
#include "kernels/gated_delta/gated_delta_ref.h"

namespace hyscale {
namespace {

void check_heads(const Tensor& x, const char* what, const Tensor& like) {
  check_shape(x, what, like.shape());
  HYSCALE_CHECK(x.size(2) == 0 || x.stride(2) == 1, what, " ", to_string(x), ": the last dimension is dense");
}

template <typename Op>
void check_inputs(const Op& g) {
  HYSCALE_CHECK(g.q.rank() == 3 && g.v.rank() == 3, "q ", to_string(g.q), ", v ", to_string(g.v));
  check_heads(g.q, "q", g.q);
  check_heads(g.k, "k", g.q);
  check_heads(g.v, "v", g.v);
  HYSCALE_CHECK(g.v.size(0) == g.q.size(0) && g.v.size(1) % g.q.size(1) == 0, "v ", to_string(g.v), ", q ", to_string(g.q));
  check_tensor(g.log_decay, "log_decay", DType::f32, {g.v.size(0), g.v.size(1)});
  check_tensor(g.beta, "beta", DType::f32, g.log_decay.shape());
  check_tensor(g.document_starts, "document_starts", DType::i32, {-1});
  HYSCALE_CHECK(g.chunk >= 1 && g.document_starts.size(0) >= 1, "chunk ", g.chunk, ", ", g.document_starts.size(0), " document starts");
}

}  // namespace

void gated_delta(const GatedDelta& g) {
  check_inputs(g);
  check_heads(g.o, "o", g.v);
  HYSCALE_DISPATCH("gated_delta", g.q.device(), gated_delta_ref(g), gated_delta_chunks_fit(g) ? gated_delta_chunks(g) : gated_delta_plain(g));
}

size_t gated_delta_workspace_bytes(const GatedDelta& g) {
#ifdef HYSCALE_HAS_CUDA
  if (g.q.device().is_cuda() || g.q.dtype() != DType::f32) return gated_delta_chunks_fit(g) ? gated_delta_chunks_workspace_bytes(g) : 0;
#endif
  return gated_delta_ref_workspace_bytes(g);
}

void gated_delta_backward(const GatedDeltaBackward& g) {
  check_inputs(g);
  check_heads(g.dout, "dout", g.v);
  check_heads(g.dq, "dq", g.q);
  check_heads(g.dk, "dk", g.q);
  check_heads(g.dv, "dv", g.v);
  check_tensor(g.dlog_decay, "dlog_decay", DType::f32, g.log_decay.shape());
  check_tensor(g.dbeta, "dbeta", DType::f32, g.log_decay.shape());
  HYSCALE_DISPATCH("gated_delta_backward", g.q.device(), gated_delta_backward_ref(g), gated_delta_chunks_fit(g) ? gated_delta_chunks(g) : gated_delta_backward_plain(g));
}

size_t gated_delta_backward_workspace_bytes(const GatedDeltaBackward& g) {
#ifdef HYSCALE_HAS_CUDA
  if (g.q.device().is_cuda() || g.q.dtype() != DType::f32) return gated_delta_chunks_fit(g) ? gated_delta_chunks_workspace_bytes(g) : gated_delta_backward_plain_workspace_bytes(g);
#endif
  return gated_delta_backward_ref_workspace_bytes(g);
}

}  // namespace hyscale
