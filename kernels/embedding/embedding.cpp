#include "kernels/embedding/embedding.h"

#include <algorithm>

#include "kernels/common/op.h"
#include "kernels/common/residual_types.h"
#include "kernels/common/rows.h"

namespace hyscale {

void embedding_cuda(const Embedding&);
void embedding_backward_cuda(const EmbeddingBackward&);

namespace {

void check_token(const Tensor& tokens, int64_t t, int64_t vocabulary) {
  const int32_t id = tokens.i32()[t];
  HYSCALE_CHECK(id >= -1 && id < vocabulary, "token ", id, " at ", t, ", vocabulary ", vocabulary);
}

void embedding_ref(const Embedding& e) {
  const int64_t tokens = e.tokens.size(0), columns = e.weight.size(1);
  for (int64_t t = 0; t < tokens; ++t) check_token(e.tokens, t, e.weight.size(0));
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t id = e.tokens.i32()[t];
    if (id < 0)
      std::fill_n(row_of(e.y, t), columns, 0.0f);
    else
      std::copy_n(row_of(e.weight, id), columns, row_of(e.y, t));
  }
}

void embedding_backward_ref(const EmbeddingBackward& e) {
  const int64_t tokens = e.tokens.size(0), columns = e.dweight.size(1);
  constexpr int64_t kBlock = 64;  // columns of one thread at a time: rows are added in the order of t
  for (int64_t t = 0; t < tokens; ++t) check_token(e.tokens, t, e.dweight.size(0));
#pragma omp parallel for
  for (int64_t first = 0; first < columns; first += kBlock) {
    const int64_t last = std::min(columns, first + kBlock);
    for (int64_t t = 0; t < tokens; ++t) {
      if (e.tokens.i32()[t] < 0) continue;
      const float* dy = row_of(e.dy, t);
      float* dw = row_of(e.dweight, e.tokens.i32()[t]);
      for (int64_t c = first; c < last; ++c) dw[c] += dy[c];
    }
  }
}

}  // namespace

void embedding(const Embedding& e) {
  check_tensor(e.tokens, "tokens", DType::i32, {-1});
  check_shape(e.y, "y", {e.tokens.size(0), e.weight.size(1)});
  check_residual_types("embedding", e.y, e.weight);
  HYSCALE_DISPATCH("embedding", e.y.device(), embedding_ref(e), embedding_cuda(e));
}

void embedding_backward(const EmbeddingBackward& e) {
  check_tensor(e.tokens, "tokens", DType::i32, {-1});
  check_shape(e.dy, "dy", {e.tokens.size(0), e.dweight.size(1)});
  HYSCALE_CHECK(e.dweight.dtype() == DType::f32, "dweight is ", dtype_name(e.dweight.dtype()));
  HYSCALE_DISPATCH("embedding_backward", e.dy.device(), embedding_backward_ref(e), embedding_backward_cuda(e));
}

size_t embedding_backward_workspace_bytes(const EmbeddingBackward& e) {
  // CUDA sorts (token, position) pairs: places, both results, and the sort's own memory, a copy of keys and values and counters.
  const size_t n = static_cast<size_t>(e.tokens.size(0));
  return e.dy.device().is_cpu() ? 0 : 4 * aligned_bytes(4 * n) + aligned_bytes((size_t{2} << 20) + 9 * n);
}

}  // namespace hyscale
