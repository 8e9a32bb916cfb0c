#include "kernels/key_blocks/key_blocks.h"

#include <algorithm>

#include "kernels/common/op.h"
#include "kernels/common/rows.h"

namespace hyscale {
namespace {

int64_t block_row(const KeyBlocks& b, int64_t t) { return first_key_block(b.key_begin.i32()[t], b.ratio) + b.positions.i32()[t] / b.ratio; }

// Whether the block that holds token t has all its tokens: then its last one lies as much further along.
bool is_complete(const KeyBlocks& b, int64_t t) {
  const int64_t rest = b.ratio - 1 - b.positions.i32()[t] % b.ratio;
  return t + rest < b.positions.size(0) && b.positions.i32()[t + rest] == b.positions.i32()[t] + rest;
}

bool starts_block(const KeyBlocks& b, int64_t t) { return b.positions.i32()[t] % b.ratio == 0 && is_complete(b, t); }

void key_block_bounds_ref(const KeyBlockBounds& k) {
  const int64_t tokens = k.begin.size(0);
  std::fill_n(k.block_positions.i32(), k.block_positions.size(0), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t first = first_key_block(k.blocks.key_begin.i32()[t], k.blocks.ratio), position = k.blocks.positions.i32()[t];
    k.begin.i32()[t] = static_cast<int32_t>(first);
    k.end.i32()[t] = static_cast<int32_t>(first + (position + 1) / k.blocks.ratio);
    if (starts_block(k.blocks, t)) k.block_positions.i32()[block_row(k.blocks, t)] = static_cast<int32_t>(position);
  }
}

void pool_key_blocks_ref(const PoolKeyBlocks& p) {
  const int64_t tokens = p.x.size(0), dims = p.x.size(1), ratio = p.blocks.ratio;
  std::fill_n(p.pooled.f32(), p.pooled.elements(), 0.0f);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    if (!starts_block(p.blocks, t)) continue;
    float* pooled = row_of(p.pooled, block_row(p.blocks, t));
    for (int64_t d = 0; d < dims; ++d) {
      float sum = 0;
      for (int64_t i = 0; i < ratio; ++i) sum += row_of(p.x, t + i)[d];
      pooled[d] = sum / static_cast<float>(ratio);
    }
  }
}

void pool_key_blocks_backward_ref(const PoolKeyBlocksBackward& p) {
  const int64_t tokens = p.dx.size(0), dims = p.dx.size(1);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    float* dx = row_of(p.dx, t);
    if (!is_complete(p.blocks, t)) {
      std::fill_n(dx, dims, 0.0f);
      continue;
    }
    const float* dpooled = row_of(p.dpooled, block_row(p.blocks, t));
    for (int64_t d = 0; d < dims; ++d) dx[d] = dpooled[d] / static_cast<float>(p.blocks.ratio);
  }
}

void check_blocks(const KeyBlocks& b) {
  HYSCALE_CHECK(b.ratio >= 1, "ratio is ", b.ratio);
  check_tensor(b.positions, "positions", DType::i32, {-1});
  check_tensor(b.key_begin, "key_begin", DType::i32, b.positions.shape());
}

void check_rows(const KeyBlocks& b, const Tensor& x, const Tensor& pooled) {
  check_blocks(b);
  check_shape(x, "x", {b.positions.size(0), -1});
  check_shape(pooled, "pooled", {num_key_blocks(x.size(0), b.ratio), x.size(1)});
  HYSCALE_CHECK(pooled.is_contiguous(), "pooled ", to_string(pooled), " is contiguous");
}

}  // namespace

void key_block_bounds(const KeyBlockBounds& k) {
  check_blocks(k.blocks);
  check_tensor(k.begin, "begin", DType::i32, k.blocks.positions.shape());
  check_tensor(k.end, "end", DType::i32, k.blocks.positions.shape());
  check_tensor(k.block_positions, "block_positions", DType::i32, {num_key_blocks(k.begin.size(0), k.blocks.ratio)});
  HYSCALE_DISPATCH("key_block_bounds", k.begin.device(), key_block_bounds_ref(k), unsupported_device("key_block_bounds", k.begin.device()));
}

void pool_key_blocks(const PoolKeyBlocks& p) {
  check_rows(p.blocks, p.x, p.pooled);
  HYSCALE_DISPATCH("pool_key_blocks", p.x.device(), pool_key_blocks_ref(p), unsupported_device("pool_key_blocks", p.x.device()));
}

void pool_key_blocks_backward(const PoolKeyBlocksBackward& p) {
  check_rows(p.blocks, p.dx, p.dpooled);
  HYSCALE_DISPATCH("pool_key_blocks_backward", p.dx.device(), pool_key_blocks_backward_ref(p), unsupported_device("pool_key_blocks_backward", p.dx.device()));
}

}  // namespace hyscale
