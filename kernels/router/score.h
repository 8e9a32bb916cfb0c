// Scores of the router from its logits, and their slopes; host and device. The score of softmax is exp(z): what divides by a sum of
// scores may take the token's largest logit from all of them before.
#pragma once
#include "kernels/common/host_device.h"
#include "kernels/router/router.h"

namespace hyscale {

HYSCALE_HOST_DEVICE inline float router_score(RouterScore score, float z) {
  if (score == RouterScore::sigmoid) return sigmoid(z);
  if (score == RouterScore::softmax) return expf(z);
  return sqrtf(softplus(z));
}

// d score / d logit.
HYSCALE_HOST_DEVICE inline float router_slope(RouterScore score, float z) {
  const float s = router_score(score, z);
  if (score == RouterScore::sigmoid) return s * (1 - s);
  if (score == RouterScore::softmax) return s;
  return s > 0 ? sigmoid(z) / (2 * s) : 0;
}

}  // namespace hyscale
