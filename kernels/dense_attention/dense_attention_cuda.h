// CUDA entries of dense_attention; neither needs a workspace.
#pragma once
#include "kernels/dense_attention/dense_attention.h"

namespace hyscale {
void dense_attention_cuda(const DenseAttention&);
void dense_attention_plain_cuda(const DenseAttention&);  // any number of dimensions; small models and tests
}  // namespace hyscale
