// Rotary position embedding, in place.
//   pair i of a head: (a, b) -> (a cos - b sin, a sin + b cos), angle = position * inv_freq[i], both factors f32
//   interleaved: pair i is elements (2i, 2i + 1); otherwise (i, i + D/2)
// The pairs stay where they are (Hugging Face's GLM code moves them to half-split order on both sides of the dot product;
// the products are equal). `inverse` turns by -angle: the backward pass.
#pragma once
#include <vector>

#include "core/tensor.h"

namespace hyscale {

struct Rope {
  Tensor x;          // [T, H, D] view, last dimension dense; D is the rotary width, even
  Tensor positions;  // i32 [T]
  Tensor inv_freq;   // f32 [D / 2], on the device of x
  bool interleaved = true;
  bool inverse = false;
  Stream stream;
};
void rope(const Rope&);

// theta^(-2i/D) as Hugging Face's default rope computes it, in f32.
std::vector<float> rope_inverse_frequencies(float theta, int64_t rotary_dim);

// YaRN: frequencies that turn fewer than beta_slow times within the original context are divided by factor, those that turn
// more than beta_fast times stay, with a ramp in between. No magnitude factor. Source: YaRN (arXiv 2309.00071), section 3.2.
struct YarnScaling {
  double factor = 1, original_positions = 0, beta_fast = 32, beta_slow = 1;
};
std::vector<float> yarn_inverse_frequencies(float theta, int64_t rotary_dim, const YarnScaling&);

}  // namespace hyscale
