// CUDA entries of the grouped products, their form for wide matrices on Hopper, and that for f32.
#pragma once
#include "kernels/gemm/grouped_gemm.h"

namespace hyscale {

void grouped_gemm_forward_cuda(const GroupedGemm&);
void grouped_gemm_dgrad_cuda(const GroupedGemm&);
void grouped_gemm_wgrad_cuda(const GroupedGemm&);

// Narrow experts would leave most of a 128 x 256 tile empty.
inline bool grouped_gemm_fits_hopper(const GroupedGemm& g) {
  const int64_t n = g.w.size(1), k = g.w.size(2);
  return n >= 256 && k >= 256 && n % 8 == 0 && k % 8 == 0;
}
void grouped_gemm_rows_hopper(const GroupedGemm&, const Tensor& in, const Tensor& out, bool forward);
void grouped_gemm_wgrad_hopper(const GroupedGemm&);

void grouped_gemm_rows_plain(const GroupedGemm&, const Tensor& in, const Tensor& out, bool forward);
void grouped_gemm_wgrad_plain(const GroupedGemm&);

}  // namespace hyscale
