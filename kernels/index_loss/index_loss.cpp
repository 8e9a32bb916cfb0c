#include "kernels/index_loss/index_loss.h"

#include "kernels/common/op.h"
#include "kernels/index_loss/index_loss_ref.h"

namespace hyscale {

void index_loss_cuda(const IndexLoss&);
size_t index_loss_cuda_workspace_bytes(const IndexLoss&);

void index_loss(const IndexLoss& l) {
  HYSCALE_CHECK(l.q.rank() == 3 && l.q.is_contiguous(), "q is ", to_string(l.q));
  check_shape(l.keys, "keys", {-1, l.q.size(2)});
  check_tensor(l.selection.indices, "indices", DType::i32, {l.q.size(0), -1});
  check_tensor(l.selection.counts, "counts", DType::i32, {l.q.size(0)});
  check_tensor(l.head_sum, "head_sum", DType::f32, l.selection.indices.shape());
  check_shape(l.dq, "dq", l.q.shape());
  check_tensor(l.dkeys, "dkeys", DType::f32, l.keys.shape());
  check_tensor(l.loss_sum, "loss_sum", DType::f64, {1});
  HYSCALE_CHECK(l.weights.defined() == l.dweights.defined(), "weights and dweights come together");
  if (l.weights.defined()) {
    check_tensor(l.weights, "weights", DType::f32, {l.q.size(0), l.q.size(1)});
    check_tensor(l.dweights, "dweights", DType::f32, l.weights.shape());
  }
  HYSCALE_DISPATCH("index_loss", l.q.device(), index_loss_ref(l), index_loss_cuda(l));
}

size_t index_loss_workspace_bytes(const IndexLoss& l) {
#ifdef HYSCALE_HAS_CUDA
  if (l.q.device().is_cuda() || l.q.dtype() != DType::f32) return index_loss_cuda_workspace_bytes(l);
#endif
  return index_loss_ref_workspace_bytes(l);
}

}  // namespace hyscale
