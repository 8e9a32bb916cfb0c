// The two ends of a model that span the vocabulary, embedding and LM head, with workspaces taken from the scratch arena.
#pragma once
#include "models/context.h"
#include "models/parameter_store.h"

namespace hyscale {

// embedding.grad[tokens[t]] += dy[t]; tokens i32 [T], dy [T, C], rows may be strided.
void embedding_backward(Context&, const Tensor& tokens, const Tensor& dy, const Parameter& embedding);

// Adds the cross entropy of h [T, C] behind the LM head to loss_sum, f64 [1]; labels i32 [T], -1: none.
void lm_head_loss(Context&, const Tensor& h, const Parameter& lm_head, const Tensor& labels, const Tensor& loss_sum);
// The same with gradients of scale `scale`: overwrites dh [T, C] and adds to lm_head.grad.
void lm_head_loss_backward(Context&, const Tensor& h, const Parameter& lm_head, const Tensor& labels, double scale, const Tensor& loss_sum, const Tensor& dh);

}  // namespace hyscale
