#include "kernels/common/cuda.cuh"
#include "kernels/common/host_device.h"
#include "kernels/gated_delta/delta_gates.h"

namespace hyscale {
namespace {

constexpr int kThreads = 256, kSumThreads = 1024;

__global__ void delta_gates_kernel(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ a_log, const float* __restrict__ dt_bias,
                                   float* __restrict__ log_decay, float* __restrict__ beta, int64_t count, int64_t heads) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t h = i % heads;
    beta[i] = sigmoid(b[i]);
    log_decay[i] = -expf(a_log[h]) * softplus(a[i] + dt_bias[h]);
  }
}

// One block per head, so that the sums over tokens have one order.
__global__ void __launch_bounds__(kSumThreads) delta_gates_backward_kernel(const float* __restrict__ a, const float* __restrict__ a_log, const float* __restrict__ dt_bias,
                                                                           const float* __restrict__ log_decay, const float* __restrict__ beta,
                                                                           const float* __restrict__ dlog_decay, const float* __restrict__ dbeta, float* __restrict__ da,
                                                                           float* __restrict__ db, float* __restrict__ da_log, float* __restrict__ ddt_bias, int64_t tokens,
                                                                           int64_t heads) {
  const int64_t h = blockIdx.x;
  const float rate = expf(a_log[h]), bias = dt_bias[h];
  float sum_a = 0, sum_log = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += kSumThreads) {
    const int64_t i = t * heads + h;
    const float share = beta[i], d = dlog_decay[i], da_here = -d * rate * sigmoid(a[i] + bias);
    db[i] = dbeta[i] * share * (1 - share);
    da[i] = da_here;
    sum_a += da_here;
    sum_log += d * log_decay[i];
  }
  sum_a = block_sum<kSumThreads>(sum_a);
  sum_log = block_sum<kSumThreads>(sum_log);
  if (threadIdx.x > 0) return;
  ddt_bias[h] += sum_a;
  da_log[h] += sum_log;
}

}  // namespace

void delta_gates_cuda(const DeltaGates& g) {
  if (g.a.elements() == 0) return;
  delta_gates_kernel<<<grid_for(g.a.elements(), kThreads), kThreads, 0, stream_of(g.stream)>>>(g.a.f32(), g.b.f32(), g.a_log.f32(), g.dt_bias.f32(), g.log_decay.f32(),
                                                                                               g.beta.f32(), g.a.elements(), g.a.size(1));
  check_launch("delta_gates");
}

void delta_gates_backward_cuda(const DeltaGatesBackward& g) {
  if (g.a.elements() == 0) return;
  delta_gates_backward_kernel<<<static_cast<unsigned>(g.a.size(1)), kSumThreads, 0, stream_of(g.stream)>>>(
      g.a.f32(), g.a_log.f32(), g.dt_bias.f32(), g.log_decay.f32(), g.beta.f32(), g.dlog_decay.f32(), g.dbeta.f32(), g.da.f32(), g.db.f32(), g.da_log.f32(), g.ddt_bias.f32(),
      g.a.size(0), g.a.size(1));
  check_launch("delta_gates_backward");
}

}  // namespace hyscale
