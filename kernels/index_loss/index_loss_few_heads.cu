// Index loss of at most 8 heads of 128 dimensions: one block per query, 16 selected keys at a time per warp, on mma.sync (sm_80; sums of
// dkeys by red.v4 need sm_90). With so few heads the products are nothing and moving rows is all: keys go from L2 straight
// into the registers where a product wants them, twice (scores, then gradients), and shared memory holds scores and ids only.
//   first   X = K Q^T (keys are M, heads are N), score[j] = sum_h w[h] relu(X[j, h]); behind the last key the scores become G
//   second  X again, C[j, h] = G[j] w[h] [X > 0] in bf16, dq^T += K^T C, dkeys(row j) = C Q, dw[h] += G[j] relu(X[j, h])
//
// A lane holds 16-byte pieces of rows. An order of dimensions in a contraction is free, so register r of piece i of the four
// lanes of a row counts as the 8 neighbouring columns of a fragment: column 2 c + e is dimension 32 i + 8 c + 2 r + e.
// Transposed in registers, fragments of K and of Q serve the second and third product in the same order.
#include "kernels/common/hopper.cuh"
#include "kernels/common/op.h"
#include "kernels/index_loss/divergence.cuh"
#include "kernels/index_loss/index_loss_cuda.h"

namespace hyscale {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kKeys = 16, kHeads = 8, kDims = 128, kPieces = kDims / 32;

struct Shared {
  float dq[kWarps][kHeads][kDims];
  float dweights[kWarps][kHeads];
  float parts[kWarps];
  float scores[];  // [k, up to a multiple of kKeys]; behind them as many ids, -1 beyond the count
};
__host__ __device__ inline int padded(int k) { return (k + kKeys - 1) / kKeys * kKeys; }

using Fragment = uint32_t[kPieces][4];  // of a row: [piece][register]

__device__ __forceinline__ void load(Fragment& to, const bf16* row, int lane) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const uint4 piece = row ? __ldg(reinterpret_cast<const uint4*>(row) + 4 * i + lane % 4) : uint4{};
    to[i][0] = piece.x, to[i][1] = piece.y, to[i][2] = piece.z, to[i][3] = piece.w;
  }
}

// An 8 x 8 matrix, a row per four lanes, to its transpose.
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
__device__ __forceinline__ uint32_t pair(float x, float y) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
  return reinterpret_cast<const uint32_t&>(both);
}
// d += a b, M=16, N=8, K=16.
__device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// d = a b, M=16, N=8, K=8.
__device__ __forceinline__ void multiply_short(float* d, uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
               : "r"(a0), "r"(a1), "r"(b), "f"(0.f));
}

// The two rows of a tile of which this lane holds pieces.
struct Keys {
  Fragment rows[2];
  __device__ __forceinline__ Keys(const IndexLossArguments& a, const int32_t* ids, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t id = ids[lane / 4 + 8 * half];
      load(rows[half], id < 0 ? nullptr : a.keys + id * a.keys_stride, lane);
    }
  }
};

// x[2 half + e] = product of key lane / 4 + 8 half with head lane % 4 * 2 + e.
__device__ __forceinline__ void products(float (&x)[4], const Keys& keys, const Fragment& q) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
#pragma unroll
    for (int r = 0; r < 4; r += 2) multiply(x, keys.rows[0][i][r], keys.rows[1][i][r], keys.rows[0][i][r + 1], keys.rows[1][i][r + 1], q[i][r], q[i][r + 1]);
}

// C Q of a tile to the rows of dkeys. A trade between rows brings whole 128-byte lines into one instruction.
template <bool kFixed>
__device__ __forceinline__ void add_rows(const IndexLossArguments& a, const int32_t* ids, uint32_t c0, uint32_t c1, const Fragment& q_columns, int lane) {
#pragma unroll
  for (int i = 0; i < kPieces; i += 2) {
    float d[32];  // register bits: column 0, row 3, register (2 bits), piece
#pragma unroll
    for (int r = 0; r < 8; ++r) multiply_short(d + 4 * r, c0, c1, q_columns[i + r / 4][r % 4]);
    hopper::trade<8, 4>(d, lane);
#pragma unroll
    for (int n = 0; n < 32; ++n) {
      if (n & 5) continue;
      const int32_t id = ids[lane / 8 * 2 + (n >> 3 & 1) + 8 * (n >> 1 & 1)];
      const int column = 32 * (i + (n >> 4)) + lane % 4 * 8 + (lane >> 2 & 1) * 4;
      if (id < 0) continue;
      if constexpr (kFixed) {
        long long* to = a.sums + static_cast<int64_t>(id) * kDims + column;
#pragma unroll
        for (int e = 0; e < 4; ++e) add_fixed(to + e, d[n + e % 2 + e / 2 * 4], __ldg(&a.unit->scale));
      } else {
        hopper::add_four(a.dkeys + id * a.dkeys_stride + column, d[n], d[n + 1], d[n + 4], d[n + 5]);
      }
    }
  }
}

// Sum (or maximum) of all threads' numbers, the same in all.
template <typename Combine>
__device__ __forceinline__ float over_block(float of_warp, float (&parts)[kWarps], Combine combine) {
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = of_warp;
  __syncthreads();
  return combine(combine(parts[0], parts[1]), combine(parts[2], parts[3]));
}

template <bool kFixed>
__global__ void __launch_bounds__(kThreads, 3) one_query(const IndexLossArguments a) {
  extern __shared__ unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, column = lane % 4 * 2;
  const int64_t t = blockIdx.x;
  const int count = a.counts[t], keys = padded(count);
  int32_t* ids = reinterpret_cast<int32_t*>(s.scores + padded(a.k));
  for (int j = thread; j < keys; j += kThreads) ids[j] = j < count ? a.indices[t * a.k + j] : -1;
  Fragment q;
  load(q, lane / 4 < a.heads ? a.q + (t * a.heads + lane / 4) * kDims : nullptr, lane);
  float weights[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) weights[e] = column + e < a.heads ? a.weights ? a.weights[t * a.heads + column + e] : 1.f : 0.f;
  __syncthreads();
  for (int first = warp * kKeys; first < keys; first += kWarps * kKeys) {
    float x[4] = {};
    products(x, Keys(a, ids + first, lane), q);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float score = weights[0] * fmaxf(x[2 * half], 0.f) + weights[1] * fmaxf(x[2 * half + 1], 0.f);
      score += __shfl_xor_sync(~0u, score, 1);
      score += __shfl_xor_sync(~0u, score, 2);
      if (lane % 4 == 0) s.scores[first + lane / 4 + 8 * half] = score;
    }
  }
  __syncthreads();
  float loss = 0;
  if (count)
    loss = divergence(
        s.scores, a.head_sum + t * a.k, count, a.grad_scale, thread, kThreads,
        [&](float x) { return over_block(warp_sum(x), s.parts, [](float y, float z) { return y + z; }); },
        [&](float x) { return over_block(warp_max(x), s.parts, [](float y, float z) { return fmaxf(y, z); }); });
  if (thread == 0) a.losses[t] = loss;
  if (thread < keys - count) s.scores[count + thread] = 0;
  __syncthreads();

  Fragment q_columns;
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) q_columns[i][r] = transposed(q[i][r]);
  float dq[kPieces][2][4] = {}, dweights[2] = {};  // dq of [piece][pair of registers]: dimensions are rows, heads are columns
  for (int first = warp * kKeys; first < keys; first += kWarps * kKeys) {
    const Keys rows(a, ids + first, lane);
    float x[4] = {};
    products(x, rows, q);
    uint32_t c[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float g = s.scores[first + lane / 4 + 8 * half];
      c[half] = pair(x[2 * half] > 0 ? g * weights[0] : 0.f, x[2 * half + 1] > 0 ? g * weights[1] : 0.f);
#pragma unroll
      for (int e = 0; e < 2; ++e) dweights[e] = fmaf(g, fmaxf(x[2 * half + e], 0.f), dweights[e]);
    }
    const uint32_t c0 = transposed(c[0]), c1 = transposed(c[1]);
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
#pragma unroll
      for (int r = 0; r < 4; r += 2)
        multiply(dq[i][r / 2], transposed(rows.rows[0][i][r]), transposed(rows.rows[0][i][r + 1]), transposed(rows.rows[1][i][r]),
                 transposed(rows.rows[1][i][r + 1]), c0, c1);
    add_rows<kFixed>(a, ids + first, c[0], c[1], q_columns, lane);
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int e = 0; e < 2; ++e) s.dq[warp][column + e][32 * i + lane / 8 * 8 + 2 * r + (lane >> 2 & 1)] = dq[i][r / 2][r % 2 * 2 + e];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    for (int offset = 4; offset < 32; offset *= 2) dweights[e] += __shfl_xor_sync(~0u, dweights[e], offset);
    if (lane < 4) s.dweights[warp][column + e] = dweights[e];
  }
  __syncthreads();
  const auto over_warps = [](const float* x, int stride) { return x[0] + x[stride] + (x[2 * stride] + x[3 * stride]); };
  for (int i = 2 * thread; i < a.heads * kDims; i += 2 * kThreads) {
    const float* x = &s.dq[0][0][0] + i;
    *reinterpret_cast<__nv_bfloat162*>(a.dq + t * a.heads * kDims + i) =
        __floats2bfloat162_rn(over_warps(x, kHeads * kDims), over_warps(x + 1, kHeads * kDims));
  }
  if (a.dweights && thread < a.heads) a.dweights[t * a.heads + thread] = over_warps(&s.dweights[0][thread], kHeads);
}

template <bool kFixed>
void launch(const IndexLossArguments& a, int64_t queries, cudaStream_t stream) {
  const size_t shared = sizeof(Shared) + static_cast<size_t>(padded(a.k)) * (sizeof(float) + sizeof(int32_t));
  const cudaError_t status = cudaFuncSetAttribute(one_query<kFixed>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  HYSCALE_CHECK(status == cudaSuccess, "index loss needs ", shared, " bytes of shared memory: ", cudaGetErrorString(status));
  one_query<kFixed><<<static_cast<unsigned>(queries), kThreads, shared, stream>>>(a);
}

}  // namespace

void index_loss_few_heads(const IndexLossArguments& a, int64_t queries, cudaStream_t stream) {
  a.sums ? launch<true>(a, queries, stream) : launch<false>(a, queries, stream);
}

}  // namespace hyscale
