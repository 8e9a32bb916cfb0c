// One thread per entry and channel; neighbouring threads take neighbouring channels.
#include "kernels/common/column_sums.cuh"
#include "kernels/common/op.h"
#include "kernels/compressor/compressor.h"

namespace hyscale {
namespace {

constexpr int kThreads = 128;

struct Source {
  const float *keys, *gates, *ape;
  const int32_t *first_token, *positions;
  int64_t keys_step, gates_step;
  int dims, channels, group;
};

// The softmax-weighted mean of one channel of one entry, and what its weights are made of.
struct Pool {
  int64_t first, own_first;
  int own_column, column;
  float most = -INFINITY, sum = 0, entry = 0;

  __device__ Pool(const Source& s, int64_t e, int channel) : own_first(s.first_token[e]), column(channel) {
    const bool overlap = s.channels == 2 * s.dims;
    own_column = overlap ? s.dims + channel : channel;
    first = own_first - (overlap && s.positions[e] > 0 ? s.group : 0);
    for (int64_t t = first; t < own_first + s.group; ++t) {
      const float z = gate(s, t), next = fmaxf(most, z), shrink = __expf(most - next), weight = __expf(z - next);
      sum = sum * shrink + weight;
      entry = entry * shrink + weight * s.keys[t * s.keys_step + column_of(t)];
      most = next;
    }
    entry /= sum;
  }
  __device__ int column_of(int64_t t) const { return t < own_first ? column : own_column; }
  __device__ float gate(const Source& s, int64_t t) const {
    const int r = static_cast<int>(t < own_first ? t - own_first + s.group : t - own_first), c = column_of(t);
    return s.gates[t * s.gates_step + c] + s.ape[r * s.channels + c];
  }
  __device__ float weight(const Source& s, int64_t t) const { return __expf(gate(s, t) - most) / sum; }
};

template <typename T>
__global__ void compressor_kernel(const Source s, T* __restrict__ entries, int64_t step, int64_t count) {
  const int channel = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (channel >= s.dims) return;
  for (int64_t e = blockIdx.x; e < count; e += gridDim.x) entries[e * step + channel] = from_f32<T>(Pool(s, e, channel).entry);
}

template <typename T>
__global__ void compressor_backward_kernel(const Source s, const T* __restrict__ dentries, int64_t step, T* __restrict__ dkeys, int64_t dkeys_step,
                                           T* __restrict__ dgates, int64_t dgates_step, int64_t count) {
  const int channel = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (channel >= s.dims) return;
  for (int64_t e = blockIdx.x; e < count; e += gridDim.x) {
    const Pool p(s, e, channel);
    const float d = to_f32(dentries[e * step + channel]);
    for (int64_t t = p.first; t < p.own_first + s.group; ++t) {
      const int c = p.column_of(t);
      const float w = p.weight(s, t);
      dkeys[t * dkeys_step + c] = from_f32<T>(w * d);
      dgates[t * dgates_step + c] = from_f32<T>(w * d * (s.keys[t * s.keys_step + c] - p.entry));
    }
  }
}

// Gates of all complete groups as rows of [m, channels].
template <typename T>
struct ApeTerm {
  const T* dgates;
  const int32_t* first_token;
  int64_t step, channels;
  __device__ float operator()(int64_t e, int64_t c) const { return to_f32(dgates[(first_token[e] + c / channels) * step + c % channels]); }
};

template <typename Op>
Source source_of(const Op& c, int64_t dims) {
  return {c.keys.f32(), c.gates.f32(), c.ape.f32(), c.first_token.i32(), c.positions.i32(), c.keys.stride(0), c.gates.stride(0),
          static_cast<int>(dims), static_cast<int>(c.ape.size(1)), static_cast<int>(c.ape.size(0))};
}

dim3 grid_of(int64_t entries, int64_t dims) { return dim3(grid_for(entries, 1), static_cast<unsigned>((dims + kThreads - 1) / kThreads)); }

}  // namespace

void compressor_cuda(const Compressor& c) {
  const int64_t entries = c.entries.size(0), dims = c.entries.size(1);
  if (entries == 0) return;
  with_float_type(c.entries.dtype(), "compressor", [&](auto type) {
    using T = decltype(type);
    compressor_kernel<T><<<grid_of(entries, dims), kThreads, 0, stream_of(c.stream)>>>(source_of(c, dims), c.entries.data<T>(), c.entries.stride(0), entries);
  });
  check_launch("compressor");
}

size_t compressor_backward_cuda_workspace_bytes(const CompressorBackward& c) { return aligned_bytes(static_cast<size_t>(kColumnSumBlocks * c.ape.elements()) * sizeof(float)); }

void compressor_backward_cuda(const CompressorBackward& c) {
  const int64_t entries = c.dentries.size(0), dims = c.dentries.size(1);
  const cudaStream_t stream = stream_of(c.stream);
  with_float_type(c.dkeys.dtype(), "compressor_backward", [&](auto type) {
    using T = decltype(type);
    // Tokens without an entry, and the half that no entry reads, get nothing.
    for (const Tensor* d : {&c.dkeys, &c.dgates})
      if (d->size(0) > 0)
        check_cuda(cudaMemset2DAsync(d->raw(), static_cast<size_t>(d->stride(0)) * sizeof(T), 0, static_cast<size_t>(d->size(1)) * sizeof(T), static_cast<size_t>(d->size(0)), stream),
                   "compressor_backward");
    if (entries == 0) return;
    compressor_backward_kernel<T><<<grid_of(entries, dims), kThreads, 0, stream>>>(source_of(c, dims), c.dentries.data<T>(), c.dentries.stride(0), c.dkeys.data<T>(),
                                                                                   c.dkeys.stride(0), c.dgates.data<T>(), c.dgates.stride(0), entries);
    column_sums_cuda(c.dape.f32(), Workspace(c.workspace).take<float>(kColumnSumBlocks * c.ape.elements()), entries, c.ape.elements(),
                     ApeTerm<T>{c.dgates.data<T>(), c.first_token.i32(), c.dgates.stride(0), c.ape.size(1)}, stream);
  });
  check_launch("compressor_backward");
}

}  // namespace hyscale
