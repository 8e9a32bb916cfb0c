// Selection: the output of FlashTopK, and what selection replay stores. Not an activation: a set of indices.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct Selection {
  Tensor indices;  // i32 [T, k]: key indices of each query, ascending; -1 beyond count
  Tensor counts;   // i32 [T]: min(k, visible keys)
};

}  // namespace hyscale
