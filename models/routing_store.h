// Expert choices of one forward pass, recorded or replayed: the same tokens go to the same experts in another precision or
// on another device. (The weights of the chosen experts are always computed anew.)
#pragma once
#include <vector>

#include "core/tensor.h"

namespace hyscale {

struct RoutingStore {
  bool replay = false;          // false: forward passes of training and evaluation leave their choices here
  std::vector<Tensor> experts;  // i32 [T, K] of each MoE layer, on the model's device
};

}  // namespace hyscale
