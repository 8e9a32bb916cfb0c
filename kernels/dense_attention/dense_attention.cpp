#include "kernels/dense_attention/dense_attention.h"

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common/op.h"
#include "kernels/dense_attention/dense_attention_cuda.h"

namespace hyscale {
namespace {

constexpr int64_t kQueryTile = 32, kKeyTile = 256;

// One head of kQueryTile queries against all keys that any of them sees.
void attend_tile(const DenseAttention& a, int64_t first, int64_t last, int64_t h, float* logits) {
  const int64_t heads = a.q.size(1), groups = a.k.size(1), group = h / (heads / groups), dims = a.q.size(2), dv = a.v.size(2), rows = last - first;
  const int32_t *begin = a.begin.i32(), *end = a.end.i32();
  int64_t low = a.k.size(0), high = 0;
  float top[kQueryTile];
  double sum[kQueryTile] = {};
  for (int64_t i = 0; i < rows; ++i) {
    top[i] = -std::numeric_limits<float>::infinity();
    low = std::min<int64_t>(low, begin[first + i]);
    high = std::max<int64_t>(high, end[first + i]);
    std::fill_n(a.out.f32() + ((first + i) * heads + h) * dv, dv, 0.0f);
  }
  const int m = static_cast<int>(rows);
  for (int64_t key = low; key < high; key += kKeyTile) {
    const int64_t count = std::min(kKeyTile, high - key);
    const int n = static_cast<int>(count);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, static_cast<int>(dims), a.scale, a.q.f32() + (first * heads + h) * dims,
                static_cast<int>(heads * dims), a.k.f32() + (key * groups + group) * dims, static_cast<int>(groups * dims), 0, logits, static_cast<int>(kKeyTile));
    for (int64_t i = 0; i < rows; ++i) {
      float *l = logits + i * kKeyTile, *out = a.out.f32() + ((first + i) * heads + h) * dv;
      const int64_t b = std::max<int64_t>(begin[first + i] - key, 0), e = std::min<int64_t>(end[first + i] - key, count);
      float now = top[i];
      for (int64_t j = b; j < e; ++j) now = std::max(now, l[j]);
      const float shrink = now == top[i] ? 1 : std::exp(top[i] - now);
      sum[i] *= shrink;
      for (int64_t d = 0; d < dv; ++d) out[d] *= shrink;
      top[i] = now;
      for (int64_t j = 0; j < count; ++j) sum[i] += static_cast<double>(l[j] = j >= b && j < e ? std::exp(l[j] - now) : 0);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, static_cast<int>(dv), n, 1, logits, static_cast<int>(kKeyTile),
                a.v.f32() + (key * groups + group) * dv, static_cast<int>(groups * dv), 1, a.out.f32() + (first * heads + h) * dv, static_cast<int>(heads * dv));
  }
  for (int64_t i = 0; i < rows; ++i) {
    float* out = a.out.f32() + ((first + i) * heads + h) * dv;
    for (int64_t d = 0; sum[i] > 0 && d < dv; ++d) out[d] = static_cast<float>(out[d] / sum[i]);
    a.lse.f32()[(first + i) * heads + h] = static_cast<float>(top[i] + std::log(sum[i]));
  }
}

void dense_attention_ref(const DenseAttention& a) {
  const int64_t queries = a.q.size(0), heads = a.q.size(1), tiles = (queries + kQueryTile - 1) / kQueryTile;
  Workspace workspace(a.workspace);
  float* logits = workspace.take<float>(omp_get_max_threads() * kQueryTile * kKeyTile);
#pragma omp parallel for schedule(dynamic)
  for (int64_t job = 0; job < tiles * heads; ++job) {
    const int64_t first = job / heads * kQueryTile;
    attend_tile(a, first, std::min(queries, first + kQueryTile), job % heads, logits + omp_get_thread_num() * kQueryTile * kKeyTile);
  }
}

}  // namespace

void dense_attention(const DenseAttention& a) {
  HYSCALE_CHECK(a.q.rank() == 3 && a.k.rank() == 3 && a.v.rank() == 3 && a.k.size(0) == a.v.size(0) && a.k.size(1) > 0 && a.q.size(1) % a.k.size(1) == 0 &&
                    a.v.size(1) == a.k.size(1) && a.k.size(2) == a.q.size(2),
                "q ", to_string(a.q), ", k ", to_string(a.k), ", v ", to_string(a.v));
  for (const Tensor* t : {&a.q, &a.k, &a.v, &a.out}) HYSCALE_CHECK(t->is_contiguous(), to_string(*t), " is strided");
  check_shape(a.out, "out", {a.q.size(0), a.q.size(1), a.v.size(2)});
  check_tensor(a.lse, "lse", DType::f32, {a.q.size(0), a.q.size(1)});
  check_tensor(a.begin, "begin", DType::i32, {a.q.size(0)});
  check_tensor(a.end, "end", DType::i32, {a.q.size(0)});
  HYSCALE_DISPATCH("dense_attention", a.q.device(), dense_attention_ref(a), dense_attention_cuda(a));
}

size_t dense_attention_workspace_bytes(const DenseAttention& a) {
  if (a.q.dtype() != DType::f32) return 0;
  return aligned_bytes(static_cast<size_t>(omp_get_max_threads() * kQueryTile * kKeyTile) * sizeof(float));
}

}  // namespace hyscale
