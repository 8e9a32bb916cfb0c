// CPU form of sparse attention.
#pragma once
#include "kernels/sparse_attention/sparse_attention.h"

namespace hyscale {

void sparse_attention_forward_ref(const SparseAttentionForward&);
size_t sparse_attention_forward_ref_workspace_bytes(const SparseAttentionForward&);
void sparse_attention_backward_ref(const SparseAttentionBackward&);
size_t sparse_attention_backward_ref_workspace_bytes(const SparseAttentionBackward&);

}  // namespace hyscale
