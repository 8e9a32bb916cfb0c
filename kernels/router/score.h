// Scores of the router from its logits, and their slopes; host and device. The score of softmax is exp(z): what divides by a sum of
// scores may take the token's largest logit from all of them before.
#pragma once
#include <cmath>

#include "kernels/router/router.h"

#ifdef __CUDACC__
#define HYSCALE_HOST_DEVICE __host__ __device__
#else
#define HYSCALE_HOST_DEVICE
#endif

namespace hyscale {

HYSCALE_HOST_DEVICE inline float router_sigmoid(float z) { return 1 / (1 + expf(-z)); }

HYSCALE_HOST_DEVICE inline float router_score(RouterScore score, float z) {
  if (score == RouterScore::sigmoid) return router_sigmoid(z);
  if (score == RouterScore::softmax) return expf(z);
  return sqrtf(fmaxf(z, 0) + log1pf(expf(-fabsf(z))));  // softplus that overflows on neither side
}

// d score / d logit.
HYSCALE_HOST_DEVICE inline float router_slope(RouterScore score, float z) {
  const float s = router_score(score, z);
  if (score == RouterScore::sigmoid) return s * (1 - s);
  if (score == RouterScore::softmax) return s;
  return s > 0 ? router_sigmoid(z) / (2 * s) : 0;
}

}  // namespace hyscale
