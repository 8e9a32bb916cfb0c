#include "kernels/common/cuda.cuh"
#include "kernels/rope/rope.h"

namespace hyscale {
namespace {

// One block per token; threads share its (head, pair)s.
template <typename T>
__global__ void rope_kernel(T* x, int64_t token_step, int64_t head_step, const int32_t* __restrict__ positions, const float* __restrict__ inv_freq, int64_t heads,
                            int64_t half, bool interleaved, bool inverse, int64_t tokens) {
  extern __shared__ float2 turns[];  // [half]: cosine and sine
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    __syncthreads();
    for (int64_t i = threadIdx.x; i < half; i += blockDim.x) {
      float s, c;
      sincosf(static_cast<float>(positions[t]) * inv_freq[i], &s, &c);
      turns[i] = make_float2(c, inverse ? -s : s);
    }
    __syncthreads();
    for (int64_t j = threadIdx.x; j < heads * half; j += blockDim.x) {
      const int64_t i = j % half;
      T* row = x + t * token_step + j / half * head_step;
      T &a = row[interleaved ? 2 * i : i], &b = row[interleaved ? 2 * i + 1 : i + half];
      const float fa = to_f32(a), fb = to_f32(b);
      a = from_f32<T>(fa * turns[i].x - fb * turns[i].y);
      b = from_f32<T>(fa * turns[i].y + fb * turns[i].x);
    }
  }
}

}  // namespace

void rope_cuda(const Rope& r) {
  const int64_t tokens = r.x.size(0), heads = r.x.size(1), half = r.x.size(2) / 2;
  if (r.x.elements() == 0) return;
  with_float_type(r.x.dtype(), "rope", [&](auto type) {
    using T = decltype(type);
    const int threads = heads * half >= 256 ? 256 : 32;
    rope_kernel<T><<<grid_for(tokens, 1), threads, half * sizeof(float2), stream_of(r.stream)>>>(r.x.data<T>(), r.x.stride(0), r.x.stride(1), r.positions.i32(),
                                                                                                 r.inv_freq.f32(), heads, half, r.interleaved, r.inverse, tokens);
  });
  check_launch("rope");
}

}  // namespace hyscale
