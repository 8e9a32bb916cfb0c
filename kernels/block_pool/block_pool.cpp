#include "kernels/block_pool/block_pool.h"

#include "kernels/common/op.h"
#include "kernels/common/rows.h"

namespace hyscale {

void block_pool_cuda(const BlockPool&);
void block_pool_backward_cuda(const BlockPoolBackward&);

namespace {

void block_pool_ref(const BlockPool& p) {
  const int64_t blocks = p.pooled.size(0), dims = p.pooled.size(1);
#pragma omp parallel for
  for (int64_t e = 0; e < blocks; ++e)
    for (int64_t d = 0; d < dims; ++d) {
      float sum = 0;
      for (int64_t i = 0; i < p.ratio; ++i) sum += row_of(p.x, p.first_token.i32()[e] + i)[d];
      row_of(p.pooled, e)[d] = sum / static_cast<float>(p.ratio);
    }
}

void block_pool_backward_ref(const BlockPoolBackward& p) {
  const int64_t blocks = p.dpooled.size(0), dims = p.dpooled.size(1);
  for (int64_t t = 0; t < p.dx.size(0); ++t) std::fill_n(row_of(p.dx, t), dims, 0.0f);
#pragma omp parallel for
  for (int64_t e = 0; e < blocks; ++e)
    for (int64_t i = 0; i < p.ratio; ++i)
      for (int64_t d = 0; d < dims; ++d) row_of(p.dx, p.first_token.i32()[e] + i)[d] = row_of(p.dpooled, e)[d] / static_cast<float>(p.ratio);
}

void check_pool(const Tensor& x, const Tensor& first_token, int64_t ratio, const Tensor& pooled) {
  HYSCALE_CHECK(x.rank() == 2 && ratio >= 1, "x ", to_string(x), ", ratio ", ratio);
  check_tensor(first_token, "first_token", DType::i32, {-1});
  check_shape(pooled, "pooled", {first_token.size(0), x.size(1)});
  HYSCALE_CHECK(first_token.size(0) * ratio <= x.size(0), first_token.size(0), " blocks of ", ratio, " in ", x.size(0), " tokens");
}

}  // namespace

void block_pool(const BlockPool& p) {
  check_pool(p.x, p.first_token, p.ratio, p.pooled);
  HYSCALE_DISPATCH("block_pool", p.x.device(), block_pool_ref(p), block_pool_cuda(p));
}

void block_pool_backward(const BlockPoolBackward& p) {
  check_pool(p.dx, p.first_token, p.ratio, p.dpooled);
  HYSCALE_DISPATCH("block_pool_backward", p.dx.device(), block_pool_backward_ref(p), block_pool_backward_cuda(p));
}

}  // namespace hyscale
