// The inverse of a chunk's unit lower triangle, by one block.
#pragma once
#include "kernels/gated_delta/delta_chunks.cuh"

namespace hyscale::delta_chunks {

__device__ __forceinline__ uint32_t as_tf32(float x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

// d += a b, 16 x 16 numbers, by one warp; rows of a and b are `step_a` and `step_b` apart.
__device__ __forceinline__ void add_block_product(float (&d)[2][4], const float* a, int step_a, const float* b, int step_b) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = 0; k < 16; k += 8) {
    const uint32_t a0 = as_tf32(a[g * step_a + k + t]), a1 = as_tf32(a[(g + 8) * step_a + k + t]), a2 = as_tf32(a[g * step_a + k + t + 4]),
                a3 = as_tf32(a[(g + 8) * step_a + k + t + 4]);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint32_t b0 = as_tf32(b[(k + t) * step_b + n * 8 + g]), b1 = as_tf32(b[(k + t + 4) * step_b + n * 8 + g]);
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                   : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
  }
}
__device__ __forceinline__ void store_block(const float (&d)[2][4], float sign, float* to, int step) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) to[(g + i / 2 * 8) * step + n * 8 + t * 2 + i % 2] = sign * d[n][i];
}

constexpr int kStep = kChunk + 4;  // of f32 matrices, so that a warp's reads of a column meet different banks

// t = (I + a)^-1 for a strictly lower a, [64, 64]: diagonal blocks of 16 by substitution, then T_ij = -T_ii sum over k of A_ik T_kj, one
// diagonal further out at a time. scratch: [4, 16, 20].
__device__ inline void invert(const float* a, float* t, float* scratch) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  for (int i = thread; i < kSquare; i += kThreads) t[i / kChunk * kStep + i % kChunk] = 0;
  __syncthreads();
  if (thread < kChunk) {
    const int block = thread / 16 * 16, column = thread % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      x[i] = i == column ? 1 : 0;
#pragma unroll
      for (int j = 0; j < 16; ++j)
        if (j < i) x[i] -= a[(block + i) * kStep + block + j] * x[j];
      t[(block + i) * kStep + block + column] = x[i];
    }
  }
  for (int d = 1; d < 4; ++d) {
    __syncthreads();
    if (warp >= 4 - d) continue;
    const int i = (d + warp) * 16, j = warp * 16;
    float* mine = scratch + warp * 320;
    float sum[2][4] = {}, block[2][4] = {};
    for (int k = j; k < i; k += 16) add_block_product(sum, a + i * kStep + k, kStep, t + k * kStep + j, kStep);
    store_block(sum, 1, mine, 20);
    __syncwarp();
    add_block_product(block, t + i * kStep + i, kStep, mine, 20);
    store_block(block, -1, t + i * kStep + j, kStep);
  }
  __syncthreads();
}

}  // namespace hyscale::delta_chunks
