// Rows as e4m3 with one scale each, a power of two:
//   scale = 2^ceil(log2(max(amax, 1e-4) / 448)),   q = e4m3(x / scale),   amax = max |x| over the row
// so |x - scale * q| <= max(2^-4 |x|, scale * 2^-10): rounding is to nearest even and nothing exceeds 448. A row with NaN or infinity
// gets the scale NaN. Source: DeepSeek-V3.2-Exp, inference/kernel.py (act_quant with scale_fmt "ue8m0", blocks of 128).
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct QuantizeRows {
  Tensor x;       // [n, D] f32 or bf16; rows may be strided
  Tensor q;       // f8e4m3 [n, D], contiguous, overwritten
  Tensor scales;  // f32 [n], overwritten
  Stream stream;
};

// CPU (f32), CUDA (f32 and bf16). n == 0 is allowed.
void quantize_rows(const QuantizeRows&);

}  // namespace hyscale
