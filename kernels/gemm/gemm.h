// c = alpha * op(a) op(b) + beta * c, op = transpose or nothing.
//   rank 2: op(a) [M, K], op(b) [K, N], c [M, N]
//   rank 3: one product per index of dimension 0; batches may be strided views, such as [H, T, D] of a [T, H, D] tensor
// The last dimension is dense, rows may be strided. CPU: f32 through OpenBLAS. CUDA: a and b both bf16 or both f32, c bf16
// or f32, f32 accumulation, through cuBLASLt. Any size may be 0; with K = 0, c becomes beta * c. beta = 0 never reads c.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct Gemm {
  Tensor a, b, c;
  bool transpose_a = false, transpose_b = false;
  float alpha = 1, beta = 0;
  Tensor workspace;  // CUDA: u8 [kGemmWorkspaceBytes]; unused on the CPU
  Stream stream;
};
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

void gemm(const Gemm&);

}  // namespace hyscale
