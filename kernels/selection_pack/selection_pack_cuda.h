// CUDA entries of selection_pack; preconditions are checked by the callers in selection_pack.cpp.
#pragma once
#include "kernels/selection_pack/selection_pack.h"

namespace hyscale {
void pack_selection_cuda(const Selection& from, const PackedSelection& to, Stream);
void unpack_selection_cuda(const PackedSelection& from, const Selection& to, Stream);
}  // namespace hyscale
