// What the CPU and the CUDA form of an op compute by the same code.
#pragma once
#include <cmath>

#ifdef __CUDACC__
#define HYSCALE_HOST_DEVICE __host__ __device__
#else
#define HYSCALE_HOST_DEVICE
#endif

namespace hyscale {

HYSCALE_HOST_DEVICE inline float sigmoid(float z) { return 1 / (1 + expf(-z)); }
// log(1 + exp z), which overflows on neither side.
HYSCALE_HOST_DEVICE inline float softplus(float z) { return fmaxf(z, 0) + log1pf(expf(-fabsf(z))); }

}  // namespace hyscale
