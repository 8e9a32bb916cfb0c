// SwiGLU feed-forward: y = W_down (silu(W_gate x) * W_up x), with the limit of kernels/swiglu where there is one. Gate and up
// are one matrix product.
#pragma once
#include "kernels/swiglu/swiglu.h"
#include "models/context.h"
#include "models/parameter_store.h"

namespace hyscale {

// How a family calls the three matrices in files; ".weight" follows.
struct MlpNames {
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};

class Mlp {
 public:
  // Hugging Face names: prefix + gate.weight, up.weight [I, C], down.weight [C, I], by the names given.
  Mlp(ParameterStore&, const std::string& prefix, int64_t hidden_size, int64_t intermediate_size, const MlpNames& = {}, float limit = kNoLimit);

  struct Saved {
    Tensor x;        // [T, C], the caller's
    Tensor gate_up;  // [T, 2 I]
  };
  // y and dy [T, C] are of the activation's or the residual's dtype. y and dx [T, C] are overwritten, or added to.
  void forward(Context&, const Tensor& x, const Tensor& y, Saved&, bool accumulate = false);
  void backward(Context&, const Tensor& dy, const Tensor& dx, const Saved&, bool accumulate = false);

 private:
  Parameter &gate_up_, &down_;
  float limit_;
};

}  // namespace hyscale
