#include "models/layers/vocabulary.h"

#include "kernels/embedding/embedding.h"
#include "kernels/lm_head_loss/lm_head_loss.h"

namespace hyscale {
namespace {

void run(Context& ctx, LmHeadLoss l) {
  const ArenaScope scope(*ctx.scratch);
  l.workspace = workspace(ctx, lm_head_loss_workspace_bytes(l));
  lm_head_loss(l);
}

}  // namespace

void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dy, const Parameter& embedding) {
  EmbeddingBackward e{tokens, dy, embedding.grad, {}, ctx.stream};
  const ArenaScope scope(*ctx.scratch);
  e.workspace = workspace(ctx, embedding_backward_workspace_bytes(e));
  embedding_backward(e);
}

void lm_head_loss(Context& ctx, const Tensor& h, const Parameter& lm_head, const Tensor& labels, const Tensor& loss_sum) {
  run(ctx, {h, lm_head.value, labels, 0, loss_sum, {}, {}, {}, ctx.stream});
}

void lm_head_loss_backward(Context& ctx, const Tensor& h, const Parameter& lm_head, const Tensor& labels, double scale, const Tensor& loss_sum, const Tensor& dh) {
  run(ctx, {h, lm_head.value, labels, static_cast<float>(scale), loss_sum, dh, lm_head.grad, {}, ctx.stream});
}

}  // namespace hyscale
