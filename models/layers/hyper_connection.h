// Hyper-connections around one sub-layer (kernels/hyper_connection): h = read(X) goes in, X' = write(X, y) comes out.
//   fn [2 S + S^2, S C], base, scale [3]; f32. With `reads_only` (the head of the model) fn [S, S C] and scale [1].
#pragma once
#include "models/context.h"
#include "models/parameter_store.h"

namespace hyscale {

struct HyperConnectionConfig {
  int64_t hidden_size = 0, streams = 4, iterations = 20;
  float eps = 1e-6f, norm_eps = 1e-6f;
};

class HyperConnection {
 public:
  // Hugging Face names: prefix + fn, base, scale.
  HyperConnection(ParameterStore&, const std::string& prefix, const HyperConnectionConfig&, bool reads_only = false);

  struct Saved {
    Tensor x;                 // [T, S, C], the caller's
    Tensor projection, rstd;  // f32 [T, n], [T]
    Tensor pre, post, comb;   // f32 [T, S], [T, S], [T, S, S]
  };
  // h [T, C]
  void read(Context&, const Tensor& x, const Tensor& h, Saved&);
  // out [T, S, C] from the sub-layer's y [T, C]; out is not the memory of x.
  void write(Context&, const Tensor& y, const Tensor& out, const Saved&) const;

  struct Gradients {
    Tensor dpost, dcomb;
  };
  // d [T, S, C] is the gradient of `out`, and becomes that part of X's gradient that does not pass through the sub-layer or
  // the coefficients. dy [T, C] is overwritten. The result is in the scratch arena and goes to read_backward.
  Gradients write_backward(Context&, const Tensor& y, const Tensor& d, const Tensor& dy, const Saved&) const;
  // Adds to d what comes through h and the coefficients; gradients of fn, base and scale. Without a write: Gradients{}.
  void read_backward(Context&, const Tensor& dh, const Gradients&, const Tensor& d, const Saved&);

 private:
  void project(Context&, const Tensor& x, const Tensor& projection) const;
  void project_backward(Context&, const Tensor& dprojection, const Tensor& d, const Saved&);

  HyperConnectionConfig config_;
  Parameter &fn_, &base_, &scale_;
};

}  // namespace hyscale
