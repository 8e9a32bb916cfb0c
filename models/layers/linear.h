// y = x W^T and its two backward products, on weights stored [out, in].
#pragma once
#include "models/context.h"
#include "models/parameter_store.h"

namespace hyscale {

// y[T, N] = x[T, K] w.value^T. Where w is f32 and x is not, x is widened first: scores that decide a selection are f32.
void linear(Context&, const Tensor& x, const Parameter& w, const Tensor& y);
// dx[T, K] (+)= dy[T, N] w.value
void linear_dgrad(Context&, const Tensor& dy, const Parameter& w, const Tensor& dx, bool accumulate = false);
// w.grad += alpha * dy^T x
void linear_wgrad(Context&, const Tensor& dy, const Tensor& x, const Parameter& w, float alpha = 1);

// gemm() with its workspace taken from the scratch arena.
void scratch_gemm(Context&, const Tensor& a, const Tensor& b, const Tensor& c, bool transpose_a, bool transpose_b, float alpha = 1, float beta = 0);

// x itself where it is of the activation's dtype, else a copy in the scratch arena that is.
Tensor narrowed(Context&, const Tensor& x);

// [T, H * d] or [T, H, d] seen as one matrix per head: [H, T, d].
Tensor heads_first(const Tensor& x_thd);

}  // namespace hyscale
