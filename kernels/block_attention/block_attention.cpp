#include "kernels/block_attention/block_attention.h"

#include "kernels/block_attention/block_attention_ref.h"
#include "kernels/common/op.h"

namespace hyscale {

void block_attention_forward_cuda(const BlockAttentionForward&);
size_t block_attention_forward_cuda_workspace_bytes(const BlockAttentionForward&);
void block_attention_backward_cuda(const BlockAttentionBackward&);
size_t block_attention_backward_cuda_workspace_bytes(const BlockAttentionBackward&);

namespace {

template <typename Op>
void check_inputs(const Op& a) {
  HYSCALE_CHECK(a.q.rank() == 3 && a.k.rank() == 3 && a.q.is_contiguous() && a.k.is_contiguous() && a.v.is_contiguous(), "q ", to_string(a.q), ", k ", to_string(a.k));
  check_shape(a.k, "k", {-1, -1, a.q.size(2)});
  HYSCALE_CHECK(a.blocks.first_row >= 0 && a.k.size(0) >= a.blocks.first_row + a.q.size(0), a.k.size(0), " keys for ", a.q.size(0), " queries from row ", a.blocks.first_row, " on");
  check_shape(a.v, "v", a.k.shape());
  HYSCALE_CHECK(a.k.size(1) >= 1 && a.q.size(1) % a.k.size(1) == 0, a.q.size(1), " query heads, ", a.k.size(1), " key heads");
  check_tensor(a.blocks.positions, "positions", DType::i32, {a.q.size(0)});
  check_tensor(a.blocks.first_token, "first_token", DType::i32, {-1});
  check_tensor(a.blocks.selection.indices, "indices", DType::i32, {a.q.size(0), -1});
  check_tensor(a.blocks.selection.counts, "counts", DType::i32, {a.q.size(0)});
  check_shape(a.out, "out", a.q.shape());
  check_tensor(a.lse, "lse", DType::f32, {a.q.size(0), a.q.size(1)});
  HYSCALE_CHECK(a.blocks.ratio >= 1 && a.out.is_contiguous(), "ratio ", a.blocks.ratio, ", out ", to_string(a.out));
}

}  // namespace

void block_attention_forward(const BlockAttentionForward& a) {
  check_inputs(a);
  HYSCALE_DISPATCH("block_attention_forward", a.q.device(), block_attention_forward_ref(a), block_attention_forward_cuda(a));
}

size_t block_attention_forward_workspace_bytes(const BlockAttentionForward& a) {
#ifdef HYSCALE_HAS_CUDA
  if (a.q.device().is_cuda() || a.q.dtype() != DType::f32) return block_attention_forward_cuda_workspace_bytes(a);
#endif
  return block_attention_forward_ref_workspace_bytes(a);
}

void block_attention_backward(const BlockAttentionBackward& a) {
  check_inputs(a);
  check_shape(a.dout, "dout", a.q.shape());
  check_shape(a.dq, "dq", a.q.shape());
  check_tensor(a.dk, "dk", DType::f32, a.k.shape());
  check_tensor(a.dv, "dv", DType::f32, a.k.shape());
  HYSCALE_CHECK(a.dout.is_contiguous() && a.dq.is_contiguous() && a.dk.is_contiguous() && a.dv.is_contiguous(), "gradients are contiguous");
  if (a.block_mass.defined()) check_tensor(a.block_mass, "block_mass", DType::f32, a.blocks.selection.indices.shape());
  HYSCALE_DISPATCH("block_attention_backward", a.q.device(), block_attention_backward_ref(a), block_attention_backward_cuda(a));
}

size_t block_attention_backward_workspace_bytes(const BlockAttentionBackward& a) {
#ifdef HYSCALE_HAS_CUDA
  if (a.q.device().is_cuda() || a.q.dtype() != DType::f32) return block_attention_backward_cuda_workspace_bytes(a);
#endif
  return block_attention_backward_ref_workspace_bytes(a);
}

}  // namespace hyscale
