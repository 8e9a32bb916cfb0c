// SwiGLU feed-forward: y = W_down (silu(W_gate x) * W_up x). Gate and up are one matrix product.
#pragma once
#include "models/context.h"
#include "models/parameter_store.h"

namespace hyscale {

class Mlp {
 public:
  // Hugging Face names: prefix + gate_proj.weight, up_proj.weight [I, C], down_proj.weight [C, I].
  Mlp(ParameterStore&, const std::string& prefix, int64_t hidden_size, int64_t intermediate_size);

  struct Saved {
    Tensor x;        // [T, C], the caller's
    Tensor gate_up;  // [T, 2 I]
  };
  void forward(Context&, const Tensor& x, const Tensor& y, Saved&, bool accumulate = false);
  // dx[T, C] is overwritten, or added to.
  void backward(Context&, const Tensor& dy, const Tensor& dx, const Saved&, bool accumulate = false);

 private:
  Parameter &gate_up_, &down_;
};

}  // namespace hyscale
