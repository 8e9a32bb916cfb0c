// CPU form of block attention.
#pragma once
#include "kernels/block_attention/block_attention.h"

namespace hyscale {

void block_attention_forward_ref(const BlockAttentionForward&);
size_t block_attention_forward_ref_workspace_bytes(const BlockAttentionForward&);
void block_attention_backward_ref(const BlockAttentionBackward&);
size_t block_attention_backward_ref_workspace_bytes(const BlockAttentionBackward&);

}  // namespace hyscale
