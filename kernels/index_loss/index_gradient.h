// Gradient of the index score of one query with respect to its queries, weights and keys; shared by the two index losses.
#pragma once
#include <cblas.h>

#include <cstdint>

namespace hyscale {

// dots[h, j] = q[h] . rows[j]
inline void index_dots(const float* q, const float* rows, int64_t heads, int64_t count, int64_t dims, float* dots) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(heads), static_cast<int>(count), static_cast<int>(dims), 1, q,
              static_cast<int>(dims), rows, static_cast<int>(dims), 0, dots, static_cast<int>(count));
}

// scores[j] = sum_h w[h] relu(dots[h, j])
inline void index_scores(const float* dots, const float* w, int64_t heads, int64_t count, float* scores) {
  for (int64_t j = 0; j < count; ++j) scores[j] = 0;
  for (int64_t h = 0; h < heads; ++h) {
    const float weight = w ? w[h] : 1;
    for (int64_t j = 0; j < count; ++j) scores[j] += weight * (dots[h * count + j] > 0 ? dots[h * count + j] : 0);
  }
}

// With G[j] the gradient of score j: dw[h] += sum_j G relu(dots); then dots[h, j] becomes G[j] w[h] [dots > 0],
// the gradient of the dot products, from which dq and dkeys follow by two products.
inline void index_dots_gradient(float* dots, const float* gradient, const float* w, int64_t heads, int64_t count, float* dw) {
  for (int64_t h = 0; h < heads; ++h) {
    const float weight = w ? w[h] : 1;
    double sum = 0;
    for (int64_t j = 0; j < count; ++j) {
      float& dot = dots[h * count + j];
      sum += dot > 0 ? double{gradient[j]} * dot : 0;
      dot = dot > 0 ? gradient[j] * weight : 0;
    }
    if (dw) dw[h] += static_cast<float>(sum);
  }
}

}  // namespace hyscale
