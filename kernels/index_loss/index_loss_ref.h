// CPU form of the index loss.
#pragma once
#include "kernels/index_loss/index_loss.h"

namespace hyscale {

void index_loss_ref(const IndexLoss&);
size_t index_loss_ref_workspace_bytes(const IndexLoss&);

}  // namespace hyscale
