// Coefficients of one token and their backward, shared by the CPU and CUDA forms. S streams, known at compile time so that
// the S x S iterates stay in registers.
#pragma once
#include <cstdint>

#include "kernels/common/host_device.h"

namespace hyscale {

// Divides each row (or column) of m by its sum + eps.
template <int S>
HYSCALE_HOST_DEVICE inline void hc_normalize(float (&m)[S][S], float eps, bool columns) {
  for (int a = 0; a < S; ++a) {
    float sum = eps;
    for (int b = 0; b < S; ++b) sum += columns ? m[b][a] : m[a][b];
    const float inverse = 1 / sum;
    for (int b = 0; b < S; ++b) (columns ? m[b][a] : m[a][b]) *= inverse;
  }
}

// p: softmax of each row of z, before eps is added.
template <int S>
HYSCALE_HOST_DEVICE inline void hc_softmax(const float (&z)[S][S], float (&p)[S][S]) {
  for (int j = 0; j < S; ++j) {
    float most = z[j][0], sum = 0;
    for (int k = 1; k < S; ++k) most = fmaxf(most, z[j][k]);
    for (int k = 0; k < S; ++k) sum += p[j][k] = expf(z[j][k] - most);
    for (int k = 0; k < S; ++k) p[j][k] /= sum;
  }
}

// The first `steps` normalisations (column, row, column, ...) of softmax(z) + eps.
template <int S>
HYSCALE_HOST_DEVICE inline void hc_sinkhorn(const float (&z)[S][S], float eps, int64_t steps, float (&m)[S][S]) {
  hc_softmax(z, m);
  for (int j = 0; j < S; ++j)
    for (int k = 0; k < S; ++k) m[j][k] += eps;
  for (int64_t i = 0; i < steps; ++i) hc_normalize(m, eps, i % 2 == 0);
}

// d: gradient of comb, turned into that of z. kSteps iterates are kept; the host passes all of them.
// y = x / (s + eps):  dx = (dy - sum(dy y)) / (s + eps), and y x^-1 gives the divisor without keeping it.
template <int S>
HYSCALE_HOST_DEVICE inline void hc_sinkhorn_backward(const float (&z)[S][S], float eps, int64_t steps, float* iterates, int64_t iterate_step, float (&d)[S][S]) {
  float p[S][S], m[S][S];
  hc_softmax(z, p);
  for (int j = 0; j < S; ++j)
    for (int k = 0; k < S; ++k) m[j][k] = p[j][k] + eps;
  for (int64_t i = 0; i < steps; ++i) {
    for (int e = 0; e < S * S; ++e) iterates[(i * S * S + e) * iterate_step] = m[e / S][e % S];
    hc_normalize(m, eps, i % 2 == 0);
  }
  for (int64_t i = steps; i-- > 0;) {
    const bool columns = i % 2 == 0;
    for (int e = 0; e < S * S; ++e) m[e / S][e % S] = iterates[(i * S * S + e) * iterate_step];
    for (int a = 0; a < S; ++a) {
      float sum = eps, dot = 0;
      for (int b = 0; b < S; ++b) {
        const float x = columns ? m[b][a] : m[a][b], dy = columns ? d[b][a] : d[a][b];
        sum += x;
        dot += dy * x;
      }
      const float inverse = 1 / sum;
      for (int b = 0; b < S; ++b) {
        float& dy = columns ? d[b][a] : d[a][b];
        dy = (dy - dot * inverse) * inverse;
      }
    }
  }
  for (int j = 0; j < S; ++j) {
    float dot = 0;
    for (int k = 0; k < S; ++k) dot += d[j][k] * p[j][k];
    for (int k = 0; k < S; ++k) d[j][k] = p[j][k] * (d[j][k] - dot);
  }
}

}  // namespace hyscale
