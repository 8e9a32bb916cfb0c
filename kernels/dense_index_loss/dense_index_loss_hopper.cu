// The products of the warm-up index loss with tensor cores. Two kernels:
//   head_sums   a tile of queries by keys, summed over heads of a function of q . k; serves teacher and student
//   gradients   64 rows that a block owns against a stream of other rows: S = X Y^T, C = gradient * weight * [S > 0], dX += C Y.
//               dindex_q: X is one index head of 64 queries, Y the keys; dindex_keys: X is 64 keys, Y the queries, head by head.
// C is rounded to bf16, as probabilities are in attention.
#include "kernels/common/row_tiles.cuh"
#include "kernels/dense_index_loss/dense_index_loss_cuda.h"

namespace hyscale::dense_loss {
namespace {

using namespace hopper;
constexpr float kLog2E = 1.4426950408889634f;

// ---- head sums: blocks of 128 queries by 128 keys, a ring of slices of 128 dimensions.

constexpr int kTile = 128, kSlice = 128, kStages = 3, kSumThreads = 256;

struct SumArguments {
  const bf16 *q, *k;
  int64_t k_step, k_head_step;
  const float* coefficient;  // [T, heads]: lse, or weights; or null: ones
  const int32_t *begin, *end;
  float* table;
  int64_t first, last, keys;
  int heads, heads_per_key, dims;  // heads_per_key: query heads that read one key head
  float scale;
};

struct SumShared {
  unsigned char q[kStages][2][2][kTileBytes], k[kStages][2][2][kTileBytes];  // [stage][64 rows][64 columns]
};

__device__ __forceinline__ void copy_slice(uint32_t to, const bf16* from, int64_t step, int64_t first, int64_t rows, int column, int columns) {
  const int piece = static_cast<int>(threadIdx.x) % 16, row = static_cast<int>(threadIdx.x) / 16;
  to += piece / 8 * kTileBytes;
#pragma unroll
  for (int r = row; r < kTile; r += kSumThreads / 16) {
    const bool valid = first + r < rows && column + piece * 8 < columns;
    copy16(to + r / 64 * 2 * kTileBytes + tile_offset(r % 64, piece % 8), valid ? from + (first + r) * step + column + piece * 8 : from, valid);
  }
}

template <bool kTeacher>
__global__ void __launch_bounds__(kSumThreads, 1) head_sums_kernel(const SumArguments a) {
  extern __shared__ unsigned char raw[];
  SumShared& s = *reinterpret_cast<SumShared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int64_t first = a.first + static_cast<int64_t>(blockIdx.y) * kTile, key = static_cast<int64_t>(blockIdx.x) * kTile;
  const KeyRange seen = key_range<kTile, kSumThreads>(a.begin, a.end, first, a.last);
  if (key >= seen.last || key + kTile <= seen.first) return;
  const int group = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = group * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  const int slices = (a.dims + kSlice - 1) / kSlice, steps = a.heads * slices;
  const int64_t q_step = int64_t{a.heads} * a.dims;
  const auto fetch = [&](int step) {
    if (step < steps) {
      const int head = step / slices, column = step % slices * kSlice, stage = step % kStages;
      copy_slice(shared_address(s.q[stage]), a.q + int64_t{head} * a.dims, q_step, first, a.last, column, a.dims);
      copy_slice(shared_address(s.k[stage]), a.k + head / a.heads_per_key * a.k_head_step, a.k_step, key, a.keys, column, a.dims);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  float sum[2][32] = {}, x[2][32];
  for (int step = 0; step < kStages - 1; ++step) fetch(step);
  int slice = 0, head = 0;
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    fence_to_async();
    __syncthreads();
    fetch(step + kStages - 1);
    const int stage = step % kStages;
    pin(x[0]);
    pin(x[1]);
    wgmma_begin();
#pragma unroll
    for (int kk = 0; kk < kSlice / 16; ++kk)
#pragma unroll
      for (int n = 0; n < 2; ++n)
        wgmma_n64<0, 0>(x[n], row_descriptor(shared_address(s.q[stage][group][kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.k[stage][n][kk / 4])) + kk % 4 * 2,
                        slice + kk != 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(x[0]);
    pin(x[1]);
    if (++slice < slices) continue;
    float c[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t t = min(first + row + 8 * half, a.last - 1);
      c[half] = a.coefficient ? a.coefficient[t * a.heads + head] * (kTeacher ? kLog2E : 1) : 1;
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const float coefficient = c[i / 2 & 1];
        sum[n][i] = kTeacher ? sum[n][i] + exp2f(fmaf(x[n][i], a.scale, -coefficient)) : fmaf(coefficient, fmaxf(x[n][i], 0.f), sum[n][i]);
      }
    slice = 0;
    ++head;
  }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int64_t t = first + row + 8 * (i / 2 & 1), at = key + 64 * n + i / 4 * 8 + lane % 4 * 2 + (i & 1);
      if (t < a.last && at < a.keys) a.table[(t - a.first) * a.keys + at] = sum[n][i];
    }
}

template <bool kTeacher>
void launch_head_sums(const SumArguments& a, cudaStream_t stream) {
  constexpr size_t kShared = sizeof(SumShared) + 1024;
  check_cuda(cudaFuncSetAttribute(head_sums_kernel<kTeacher>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)), "dense_index_loss");
  const dim3 grid(static_cast<unsigned>((a.keys + kTile - 1) / kTile), static_cast<unsigned>((a.last - a.first + kTile - 1) / kTile));
  if (a.keys > 0) head_sums_kernel<kTeacher><<<grid, kSumThreads, kShared, stream>>>(a);
  check_launch("dense_index_loss");
}

// ---- gradients: blocks of 64 owned rows, tiles of 64 streamed rows.

constexpr int kThreads = 128, kRows = 64;

struct GradientArguments {
  const bf16 *q, *keys;
  const float *weights, *gradient;  // [T, J] or null: ones; [block, E]
  const int32_t *begin, *end;
  bf16* dq;
  float *dweights, *dkeys;
  int64_t first, last, num_keys;
  int heads, dims;
};

template <int kWide>  // columns of the product: 64, 128 or 256
struct GradientShared {
  unsigned char x[kWide / 64][kTileBytes], y[2][kWide / 64][kTileBytes], c[kTileBytes];
  float weight[2][kRows];
};

template <int kWide>
__device__ __forceinline__ void multiply(float (&d)[kWide / 2], uint64_t a, uint64_t b) {
  if constexpr (kWide == 64) wgmma_n64<0, 1>(d, a, b, 1);
  if constexpr (kWide == 128) wgmma_n128<0, 1>(d, a, b, 1);
  if constexpr (kWide == 256) wgmma_n256<0, 1>(d, a, b, 1);
}

// s = X Y^T for the tiles in shared memory. All threads have passed a barrier since the tiles were complete.
template <int kWide>
__device__ __forceinline__ void scores(const GradientShared<kWide>& s, int stage, float (&x)[32]) {
  pin(x);
  wgmma_begin();
#pragma unroll
  for (int kk = 0; kk < kWide / 16; ++kk)
    wgmma_n64<0, 0>(x, row_descriptor(shared_address(s.x[kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.y[stage][kk / 4])) + kk % 4 * 2, kk != 0);
  wgmma_commit();
  wgmma_wait<0>();
  pin(x);
}

// sum += C Y, with C in registers as the product S lies there.
template <int kWide>
__device__ __forceinline__ void add_product(GradientShared<kWide>& s, int stage, const float (&c)[32], float (&sum)[kWide / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<__nv_bfloat162*>(s.c + tile_offset(row + 8 * half, j) + lane % 4 * 4) = __floats2bfloat162_rn(c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
  fence_to_async();
  __syncthreads();
  pin(sum);
  wgmma_begin();
#pragma unroll
  for (int kk = 0; kk < kRows / 16; ++kk) multiply<kWide>(sum, row_descriptor(shared_address(s.c)) + kk * 2, column_descriptor(shared_address(s.y[stage])) + kk * 128);
  wgmma_commit();
  wgmma_wait<0>();
  pin(sum);
}

// 64 rows from `first` on, zeros beyond `rows` and `dims`.
template <int kWide>
__device__ __forceinline__ void copy_tile(unsigned char (&to)[kWide / 64][kTileBytes], const bf16* from, int64_t step, int64_t first, int64_t rows, int dims) {
  constexpr int kPieces = kWide / 8;
  const int piece = static_cast<int>(threadIdx.x) % kPieces, left = static_cast<int>(min(rows - first, int64_t{kRows}));
  const uint32_t tile = shared_address(to[piece / 8]);
  const bool inside = piece * 8 < dims;
  const bf16* source = from + first * step + piece * 8;
#pragma unroll 2
  for (int row = static_cast<int>(threadIdx.x) / kPieces; row < kRows; row += kThreads / kPieces) {
    const bool valid = inside && row < left;
    copy16(tile + tile_offset(row, piece % 8), valid ? source + row * step : from, valid);
  }
}

template <int kWide>
__device__ __forceinline__ GradientShared<kWide>& gradient_shared(unsigned char* raw) {
  return *reinterpret_cast<GradientShared<kWide>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
}

template <int kWide>
__global__ void __launch_bounds__(kThreads, 2) query_gradient_kernel(const GradientArguments a) {
  extern __shared__ unsigned char raw[];
  auto& s = gradient_shared<kWide>(raw);
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4, column = lane % 4 * 2;
  const int64_t head = blockIdx.y, first = a.first + static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * kRows;
  const KeyRange seen = key_range<kRows, kThreads>(a.begin, a.end, first, a.last);
  int begin[2] = {0, 0}, end[2] = {0, 0};
  float weight[2] = {0, 0}, dweight[2] = {0, 0};
  const float* gradient = a.gradient + (first - a.first + row) * a.num_keys;  // of the thread's first row; read where visible
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t t = first + row + 8 * half;
    if (t >= a.last) continue;
    begin[half] = a.begin[t], end[half] = a.end[t];
    weight[half] = a.weights ? a.weights[t * a.heads + head] : 1;
  }
  float sum[kWide / 2] = {};
  copy_tile<kWide>(s.x, a.q + head * a.dims, int64_t{a.heads} * a.dims, first, a.last, a.dims);
  if (seen.first < seen.last) copy_tile<kWide>(s.y[0], a.keys, a.dims, seen.first, a.num_keys, a.dims);
  int stage = 0;
  for (int key = seen.first; key < seen.last; key += kRows, stage ^= 1) {
    float g[32], x[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int at = key + i / 4 * 8 + column + (i & 1);
      const int half = i / 2 & 1;
      g[i] = at >= begin[half] && at < end[half] ? gradient[8 * half * a.num_keys + at] : 0;
    }
    copies_done();
    fence_to_async();
    __syncthreads();
    if (key + kRows < seen.last) copy_tile<kWide>(s.y[stage ^ 1], a.keys, a.dims, key + kRows, a.num_keys, a.dims);
    scores<kWide>(s, stage, x);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int half = i / 2 & 1;
      dweight[half] = fmaf(g[i], fmaxf(x[i], 0.f), dweight[half]);
      g[i] = x[i] > 0 ? g[i] * weight[half] : 0;
    }
    add_product<kWide>(s, stage, g, sum);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    dweight[half] += __shfl_xor_sync(~0u, dweight[half], 1);
    dweight[half] += __shfl_xor_sync(~0u, dweight[half], 2);
    const int64_t t = first + row + 8 * half;
    if (t >= a.last) continue;
    if (lane % 4 == 0 && a.dweights) a.dweights[t * a.heads + head] = dweight[half];
    bf16* to = a.dq + (t * a.heads + head) * a.dims + column;
#pragma unroll
    for (int j = 0; j < kWide / 8; ++j)
      if (8 * j < a.dims) *reinterpret_cast<__nv_bfloat162*>(to + 8 * j) = __floats2bfloat162_rn(sum[4 * j + 2 * half], sum[4 * j + 2 * half + 1]);
  }
}

template <int kWide>
__global__ void __launch_bounds__(kThreads, kWide == 256 ? 2 : 3) key_gradient_kernel(const GradientArguments a) {
  extern __shared__ unsigned char raw[];
  auto& s = gradient_shared<kWide>(raw);
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4, column = lane % 4 * 2;
  const int64_t key = static_cast<int64_t>(blockIdx.x) * kRows, step = int64_t{a.heads} * a.dims;
  copy_tile<kWide>(s.x, a.keys, a.dims, key, a.num_keys, a.dims);
  float sum[kWide / 2] = {};
  bool any = false;
  for (int64_t first = a.first; first < a.last; first += kRows) {
    const KeyRange seen = key_range<kRows, kThreads>(a.begin, a.end, first, a.last);
    if (key >= seen.last || key + kRows <= seen.first) continue;
    any = true;
    float g[32];  // gradient[key][query], of all heads
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int64_t t = first + i / 4 * 8 + column + (i & 1), at = key + row + 8 * (i / 2 & 1);
      g[i] = t < a.last && at >= a.begin[t] && at < a.end[t] ? a.gradient[(t - a.first) * a.num_keys + at] : 0;
    }
    const auto fetch = [&](int head) {
      copy_tile<kWide>(s.y[head & 1], a.q + int64_t{head} * a.dims, step, first, a.last, a.dims);
      for (int64_t i = threadIdx.x; i < kRows; i += kThreads) s.weight[head & 1][i] = first + i >= a.last ? 0 : a.weights ? a.weights[(first + i) * a.heads + head] : 1;
    };
    fetch(0);
    for (int head = 0; head < a.heads; ++head) {
      float x[32];
      copies_done();
      fence_to_async();
      __syncthreads();
      if (head + 1 < a.heads) fetch(head + 1);
      scores<kWide>(s, head & 1, x);
#pragma unroll
      for (int i = 0; i < 32; ++i) x[i] = x[i] > 0 ? g[i] * s.weight[head & 1][i / 4 * 8 + column + (i & 1)] : 0;
      add_product<kWide>(s, head & 1, x, sum);
    }
    __syncthreads();  // the last head's tile is free
  }
  if (!any) {
    copies_done();
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t at = key + row + 8 * half;
    if (at >= a.num_keys) continue;
    float* to = a.dkeys + at * a.dims + column;
#pragma unroll
    for (int j = 0; j < kWide / 8; ++j)
      if (8 * j < a.dims) to[8 * j] += sum[4 * j + 2 * half], to[8 * j + 1] += sum[4 * j + 2 * half + 1];
  }
}

template <int kWide>
void launch_gradients(const GradientArguments& a, cudaStream_t stream) {
  constexpr size_t kShared = sizeof(GradientShared<kWide>) + 1024;
  check_cuda(cudaFuncSetAttribute(query_gradient_kernel<kWide>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)), "dense_index_loss");
  check_cuda(cudaFuncSetAttribute(key_gradient_kernel<kWide>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)), "dense_index_loss");
  const dim3 grid(static_cast<unsigned>((a.last - a.first + kRows - 1) / kRows), static_cast<unsigned>(a.heads));
  if (a.heads > 0) query_gradient_kernel<kWide><<<grid, kThreads, kShared, stream>>>(a);
  if (a.num_keys > 0) key_gradient_kernel<kWide><<<static_cast<unsigned>((a.num_keys + kRows - 1) / kRows), kThreads, kShared, stream>>>(a);
  check_launch("dense_index_loss");
}

}  // namespace

void head_sums(const QueryBlock& b) {
  const DenseIndexLoss& l = *b.loss;
  const int heads = static_cast<int>(l.q.size(1)), dims = static_cast<int>(l.q.size(2)), index_heads = static_cast<int>(l.index_q.size(1)),
            index_dims = static_cast<int>(l.index_q.size(2));
  const int groups = static_cast<int>(l.k.size(1));
  SumArguments a{l.q.data<bf16>(), l.k.data<bf16>(), int64_t{groups} * dims, dims, l.lse.f32(), l.begin.i32(), l.end.i32(), b.masses, b.first, b.last, l.k.size(0), heads,
                 heads / groups, dims, l.scale * kLog2E};
  launch_head_sums<true>(a, stream_of(l.stream));
  a.q = l.index_q.data<bf16>(), a.k = l.index_keys.data<bf16>(), a.k_step = index_dims, a.k_head_step = 0;
  a.coefficient = optional_f32(l.index_weights), a.begin = l.scored_begin().i32(), a.end = l.scored_end().i32(), a.table = b.scores, a.keys = l.index_keys.size(0);
  a.heads = index_heads, a.dims = index_dims;
  launch_head_sums<false>(a, stream_of(l.stream));
}

void gradients(const QueryBlock& b) {
  const DenseIndexLoss& l = *b.loss;
  const int dims = static_cast<int>(l.index_q.size(2));
  const GradientArguments a{l.index_q.data<bf16>(), l.index_keys.data<bf16>(), optional_f32(l.index_weights), b.teacher, l.scored_begin().i32(), l.scored_end().i32(),
                            l.dindex_q.data<bf16>(), optional_f32(l.dindex_weights), l.dindex_keys.f32(), b.first, b.last, l.index_keys.size(0), static_cast<int>(l.index_q.size(1)), dims};
  if (dims <= 64) launch_gradients<64>(a, stream_of(l.stream));
  else if (dims <= 128) launch_gradients<128>(a, stream_of(l.stream));
  else launch_gradients<256>(a, stream_of(l.stream));
}

}  // namespace hyscale::dense_loss
