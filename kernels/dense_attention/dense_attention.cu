// Dense attention on Hopper: a block holds 128 queries of one head, 64 for each of its two warpgroups, and walks the keys that
// they see in tiles of 64. The scores of a tile are made together with the product of the tile before, whose time covers the
// exponentials; keys are copied two tiles ahead, values one. Up to 256 dimensions in steps of 8.
#include "kernels/common/row_tiles.cuh"
#include "kernels/dense_attention/dense_attention_cuda.h"

namespace hyscale {
namespace {

using namespace hopper;
constexpr int kQueries = 128, kKeys = 64, kThreads = 256, kMostDims = 256;
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

struct Arguments {
  const bf16 *q, *k, *v;
  const int32_t *begin, *end;
  bf16* out;
  float* lse;
  int64_t queries, keys;
  int heads, groups, dims, value_dims;
  float scale_log2;
};

struct Shared {
  unsigned char q[2][4][kTileBytes];  // [warpgroup][64 columns]
  unsigned char k[2][4][kTileBytes];  // [stage][64 columns]
  unsigned char v[2][4][kTileBytes];
  unsigned char p[2][2][kTileBytes];  // probabilities, [stage][warpgroup]
};

// A thread's two query rows, 8 apart.
struct Rows {
  int begin[2] = {0, 0}, end[2] = {0, 0};
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  // most: of log2 probabilities; sum: of the thread's own columns
};

// Scores of a tile to probabilities in shared memory; factor: by what earlier sums shrink.
__device__ __forceinline__ void probabilities(unsigned char* p, Rows& rows, float (&x)[32], int key, bool masked, float scale_log2, float (&factor)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 32; ++i) x[i] *= scale_log2;
  if (masked) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int at = key + i / 4 * 8 + column + (i & 1), half = i / 2 & 1;
      if (at < rows.begin[half] || at >= rows.end[half]) x[i] = -INFINITY;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = rows.most[half];
#pragma unroll
    for (int j = 0; j < 8; ++j) most = fmaxf(most, fmaxf(x[4 * j + 2 * half], x[4 * j + 2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float shift = most == -INFINITY ? 0 : most;  // nothing seen yet: exp2(-inf - 0) = 0
    factor[half] = exp2f(rows.most[half] - shift);
    rows.most[half] = most;
    rows.sum[half] *= factor[half];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float p0 = exp2f(x[4 * j + 2 * half] - shift), p1 = exp2f(x[4 * j + 2 * half + 1] - shift);
      rows.sum[half] += p0 + p1;
      *reinterpret_cast<__nv_bfloat162*>(p + tile_offset(row + 8 * half, j) + column * 2) = __floats2bfloat162_rn(p0, p1);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) dense_attention_kernel(const Arguments a) {
  extern __shared__ unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int group = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32, column = lane % 4 * 2;
  const int64_t head = blockIdx.y, group_of_head = head / (a.heads / a.groups);
  const int64_t first = static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * kQueries;  // the longest rows first
  const KeyRange seen = key_range<kQueries, kThreads>(a.begin, a.end, first, a.queries);
  const int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  Rows rows;
  for (int half = 0; half < 2; ++half) {
    const int64_t t = first + 64 * group + row + 8 * half;
    if (t < a.queries) rows.begin[half] = a.begin[t], rows.end[half] = a.end[t];
  }
  const auto copy_keys = [&](int tile) {
    copy_rows<kThreads>(shared_address(s.k[tile & 1]), a.k + group_of_head * a.dims, int64_t{a.groups} * a.dims, seen.first + int64_t{tile} * kKeys, a.keys, a.dims);
  };
  const auto copy_values = [&](int tile) {
    copy_rows<kThreads>(shared_address(s.v[tile & 1]), a.v + group_of_head * a.value_dims, int64_t{a.groups} * a.value_dims, seen.first + int64_t{tile} * kKeys, a.keys, a.value_dims);
  };
  const int slices = (a.dims + 15) / 16, tiles = seen.first < seen.last ? (seen.last - seen.first + kKeys - 1) / kKeys : 0;
  float out[128] = {}, x[32], factor[2];
  const auto scores = [&](int tile) {
    for (int kk = 0; kk < slices; ++kk)
      wgmma_n64<0, 0>(x, row_descriptor(shared_address(s.q[group][kk / 4])) + kk % 4 * 2, row_descriptor(shared_address(s.k[tile & 1][kk / 4])) + kk % 4 * 2, kk != 0);
    wgmma_commit();
  };
  const auto softmax = [&](int tile) {
    const int key = seen.first + tile * kKeys;
    pin(x);
    probabilities(s.p[tile & 1][group], rows, x, key, key < seen.all_first || key + kKeys > seen.all_last, a.scale_log2, factor);
    fence_to_async();
  };
  const auto add_values = [&](int tile) {
#pragma unroll
    for (int kk = 0; kk < kKeys / 16; ++kk)
      wgmma_n256<0, 1>(out, row_descriptor(shared_address(s.p[tile & 1][group])) + kk * 2, column_descriptor(shared_address(s.v[tile & 1])) + kk * 128, 1);
    wgmma_commit();
  };
  const auto arrived = [&] {
    copies_done();
    fence_to_async();
    __syncthreads();
  };
  if (tiles > 0) {
    for (int g = 0; g < 2; ++g) copy_rows<kThreads>(shared_address(s.q[g]), a.q + head * a.dims, int64_t{a.heads} * a.dims, first + 64 * g, a.queries, a.dims);
    copy_keys(0);
    arrived();
    if (tiles > 1) copy_keys(1);
    copy_values(0);
    pin(x);
    wgmma_begin();
    scores(0);
    wgmma_wait<0>();
    softmax(0);
  }
  for (int tile = 0; tile + 1 < tiles; ++tile) {
    arrived();  // the keys of the next tile, the values and probabilities of this one; what the last product read is free
    if (tile + 2 < tiles) copy_keys(tile + 2);
    copy_values(tile + 1);
    pin(x);
    pin(out);
    wgmma_begin();
    scores(tile + 1);
    add_values(tile);
    wgmma_wait<1>();
    softmax(tile + 1);
    wgmma_wait<0>();
    pin(out);
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i] *= factor[i / 2 & 1];
  }
  if (tiles > 0) {
    arrived();
    pin(out);
    wgmma_begin();
    add_values(tiles - 1);
    wgmma_wait<0>();
    pin(out);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const int64_t t = first + 64 * group + row + 8 * half;
    if (t >= a.queries) continue;
    const bool sees = rows.begin[half] < rows.end[half];
    if (lane % 4 == 0) a.lse[t * a.heads + head] = sees ? rows.most[half] * kLn2 + logf(sum) : -INFINITY;
    bf16* to = a.out + (t * a.heads + head) * a.value_dims + column;
    const float inverse = 1 / sum;
#pragma unroll
    for (int j = 0; j < 32; ++j)
      if (8 * j < a.value_dims)
        *reinterpret_cast<__nv_bfloat162*>(to + 8 * j) = sees ? __floats2bfloat162_rn(out[4 * j + 2 * half] * inverse, out[4 * j + 2 * half + 1] * inverse) : __floats2bfloat162_rn(0, 0);
  }
}

bool has_tensor_core_form(const DenseAttention& a) {
  const auto fits = [](int64_t dims) { return dims > 0 && dims % 8 == 0 && dims <= kMostDims; };
  return fits(a.q.size(2)) && fits(a.v.size(2));
}

}  // namespace

void dense_attention_cuda(const DenseAttention& a) {
  for (const Tensor* t : {&a.q, &a.k, &a.v, &a.out}) HYSCALE_CHECK(t->dtype() == DType::bf16, "dense attention on CUDA takes bf16, not ", to_string(*t));
  HYSCALE_CHECK(a.k.size(0) <= INT32_MAX, a.k.size(0), " keys");
  const int64_t queries = a.q.size(0), heads = a.q.size(1);
  if (queries == 0 || heads == 0) return;
  if (!has_tensor_core_form(a)) return dense_attention_plain_cuda(a);
  const Arguments arguments{a.q.data<bf16>(), a.k.data<bf16>(), a.v.data<bf16>(), a.begin.i32(), a.end.i32(), a.out.data<bf16>(), a.lse.f32(), queries, a.k.size(0),
                            static_cast<int>(heads), static_cast<int>(a.k.size(1)), static_cast<int>(a.q.size(2)), static_cast<int>(a.v.size(2)), a.scale * kLog2E};
  constexpr size_t kShared = sizeof(Shared) + 1024;
  check_cuda(cudaFuncSetAttribute(dense_attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)), "dense_attention");
  const dim3 grid(static_cast<unsigned>((queries + kQueries - 1) / kQueries), static_cast<unsigned>(heads));
  dense_attention_kernel<<<grid, kThreads, kShared, stream_of(a.stream)>>>(arguments);
  check_launch("dense_attention");
}

}  // namespace hyscale
