#include "kernels/sparse_attention/sparse_attention.h"

#include "kernels/common/op.h"
#include "kernels/sparse_attention/sparse_attention_ref.h"

namespace hyscale {

void sparse_attention_forward_cuda(const SparseAttentionForward&);
size_t sparse_attention_forward_cuda_workspace_bytes(const SparseAttentionForward&);
void sparse_attention_backward_cuda(const SparseAttentionBackward&);
size_t sparse_attention_backward_cuda_workspace_bytes(const SparseAttentionBackward&);

namespace {

void check_common(const Tensor& q, const Tensor& kv, const Selection& s, const Tensor& out, const Tensor& lse, const Tensor& sink) {
  if (sink.defined()) check_tensor(sink, "sink", DType::f32, {q.size(1)});
  HYSCALE_CHECK(q.rank() == 3 && q.is_contiguous() && out.rank() == 3 && out.is_contiguous(), "q ", to_string(q), ", out ", to_string(out));
  check_shape(kv, "kv", {-1, q.size(2)});
  check_shape(out, "out", {q.size(0), q.size(1), -1});
  HYSCALE_CHECK(out.size(2) <= q.size(2), "values are ", out.size(2), " of ", q.size(2), " wide");
  check_tensor(lse, "lse", DType::f32, {q.size(0), q.size(1)});
  check_tensor(s.indices, "indices", DType::i32, {q.size(0), -1});
  check_tensor(s.counts, "counts", DType::i32, {q.size(0)});
}

}  // namespace

void sparse_attention_forward(const SparseAttentionForward& a) {
  check_common(a.q, a.kv, a.selection, a.out, a.lse, a.sink);
  HYSCALE_DISPATCH("sparse_attention_forward", a.q.device(), sparse_attention_forward_ref(a), sparse_attention_forward_cuda(a));
}

void sparse_attention_backward(const SparseAttentionBackward& a) {
  check_common(a.q, a.kv, a.selection, a.out, a.lse, a.sink);
  check_shape(a.dout, "dout", a.out.shape());
  check_shape(a.dq, "dq", a.q.shape());
  check_tensor(a.dkv, "dkv", DType::f32, a.kv.shape());
  HYSCALE_CHECK(a.sink.defined() == a.dsink.defined(), "sink and dsink come together");
  if (a.dsink.defined()) check_tensor(a.dsink, "dsink", DType::f32, {a.q.size(1)});
  if (a.head_sum.defined()) check_tensor(a.head_sum, "head_sum", DType::f32, a.selection.indices.shape());
  HYSCALE_DISPATCH("sparse_attention_backward", a.q.device(), sparse_attention_backward_ref(a), sparse_attention_backward_cuda(a));
}

size_t sparse_attention_forward_workspace_bytes(const SparseAttentionForward& a) {
#ifdef HYSCALE_HAS_CUDA
  if (a.q.dtype() != DType::f32) return sparse_attention_forward_cuda_workspace_bytes(a);
#endif
  return sparse_attention_forward_ref_workspace_bytes(a);
}

size_t sparse_attention_backward_workspace_bytes(const SparseAttentionBackward& a) {
#ifdef HYSCALE_HAS_CUDA
  if (a.q.dtype() != DType::f32) return sparse_attention_backward_cuda_workspace_bytes(a);
#endif
  return sparse_attention_backward_ref_workspace_bytes(a);
}

}  // namespace hyscale
