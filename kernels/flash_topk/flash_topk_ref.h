// CPU form of FlashTopK.
#pragma once
#include "kernels/flash_topk/flash_topk.h"

namespace hyscale {

void flash_topk_update_ref(FlashTopKState&, const FlashTopKUpdate&);
size_t flash_topk_update_ref_workspace_bytes(const FlashTopKState&, const FlashTopKUpdate&);
void flash_topk_finish_ref(const FlashTopKState&, const Selection& out);

}  // namespace hyscale
