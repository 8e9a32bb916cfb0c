// The recurrence token by token, for every dtype and size. Forward: a warp owns 32 columns of a head's state, which need nothing of each
// other. Backward: a block walks a head's tokens from the last to the first; the states of a chunk are made again from the one at its start.
#include "kernels/common/head_rows.cuh"
#include "kernels/common/op.h"
#include "kernels/gated_delta/gated_delta_cuda.h"
#include "kernels/gated_delta/scan_ends.cuh"

namespace hyscale {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct Sizes {
  int64_t tokens, documents;
  int key_heads, value_heads, dk, dv, chunk;
  template <typename Op>
  explicit Sizes(const Op& g)
      : tokens(g.q.size(0)), documents(g.document_starts.size(0) - 1), key_heads(static_cast<int>(g.q.size(1))), value_heads(static_cast<int>(g.v.size(1))),
        dk(static_cast<int>(g.q.size(2))), dv(static_cast<int>(g.v.size(2))), chunk(static_cast<int>(std::min(g.chunk, std::max<int64_t>(1, g.q.size(0))))) {}
  __host__ __device__ int group() const { return value_heads / key_heads; }
  __host__ __device__ int64_t state() const { return int64_t{dk} * dv; }
  // Document d's chunks are numbered from starts[d] / chunk + d on: every document may end in the middle of one.
  __host__ __device__ int64_t most_chunks() const { return tokens / chunk + documents; }
};

template <typename T>
struct Inputs {
  HeadRows<T> q, k, v;
  const float *log_decay, *beta;
  const int32_t* starts;
  float scale;
  template <typename Op>
  explicit Inputs(const Op& g) : q(g.q), k(g.k), v(g.v), log_decay(g.log_decay.f32()), beta(g.beta.f32()), starts(g.document_starts.i32()), scale(g.scale) {}
};

// Advances a column of the state, `step` apart, by one token; returns beta (v - a S^T k), what is written along k. out: o of this column, or absent.
template <typename T>
__device__ float advance(float* column, int step, const T* q, const T* k, float v, float decay, float beta, int dk, float* out, float* miss) {
  float read = 0, o = 0;
  for (int i = 0; i < dk; ++i) {
    const float s = column[i * step] *= decay;
    read += s * to_f32(k[i]);
  }
  *miss = v - read;
  const float written = beta * *miss;
  for (int i = 0; i < dk; ++i) {
    const float s = column[i * step] += to_f32(k[i]) * written;
    if (out) o += s * to_f32(q[i]);
  }
  if (out) *out = o;
  return written;
}

// One warp per document, value head and 32 columns. states: [chunks, Hv, Dk, Dv] of the states at chunk starts, or absent; o likewise.
// Of the map alone: what becomes of the identity where all values are zero; n.dv is then Dk.
template <typename T>
__global__ void __launch_bounds__(32) forward_kernel(Inputs<T> x, HeadRows<T> o, bool with_out, float* states, ScanEnds ends, Sizes n) {
  extern __shared__ float shared[];  // [Dk, 32]
  const int head = static_cast<int>(blockIdx.y), column = static_cast<int>(blockIdx.z * 32 + threadIdx.x);
  if (column >= n.dv) return;
  float* state = shared + threadIdx.x;
  for (int64_t document = blockIdx.x; document < n.documents; document += gridDim.x) {
    const int64_t begin = x.starts[document], end = x.starts[document + 1];
    const float* first = ends.carried(document, head, n.value_heads, n.state());
    for (int i = 0; i < n.dk; ++i) state[i * 32] = ends.map ? i == column : first ? first[i * n.dv + column] : 0;
    for (int64_t t = begin; t < end; ++t) {
      if (states && (t - begin) % n.chunk == 0) {
        float* to = states + ((begin / n.chunk + document + (t - begin) / n.chunk) * n.value_heads + head) * n.state() + column;
        for (int i = 0; i < n.dk; ++i) to[i * n.dv] = state[i * 32];
      }
      const int64_t gate = t * n.value_heads + head;
      float out, miss;
      advance(state, 32, x.q(t, head / n.group()), x.k(t, head / n.group()), ends.map ? 0 : to_f32(x.v(t, head)[column]), expf(x.log_decay[gate]), x.beta[gate], n.dk, with_out ? &out : nullptr,
              &miss);
      if (with_out) o(t, head)[column] = from_f32<T>(x.scale * out);
    }
    float* last = ends.map ? ends.map : ends.last;
    if (!last) continue;
    last += (document * n.value_heads + head) * n.state() + column;
    for (int i = 0; i < n.dk; ++i) last[i * n.dv] = state[i * 32];
  }
}

// Gradients of the states at document starts, of which each column needs nothing of the others. One warp per document, value head and 32 columns.
template <typename T>
__global__ void __launch_bounds__(32) reverse_kernel(Inputs<T> x, HeadRows<T> dout, ScanEnds ends, Sizes n) {
  extern __shared__ float shared[];  // [Dk, 32]
  const int head = static_cast<int>(blockIdx.y), column = static_cast<int>(blockIdx.z * 32 + threadIdx.x);
  if (column >= n.dv) return;
  float* dstate = shared + threadIdx.x;
  for (int64_t document = blockIdx.x; document < n.documents; document += gridDim.x) {
    for (int i = 0; i < n.dk; ++i) dstate[i * 32] = 0;
    for (int64_t t = x.starts[document + 1]; t-- > x.starts[document];) {
      const T *q = x.q(t, head / n.group()), *k = x.k(t, head / n.group());
      const int64_t gate = t * n.value_heads + head;
      const float d = x.scale * to_f32(dout(t, head)[column]), decay = expf(x.log_decay[gate]);
      float de = 0;
      for (int i = 0; i < n.dk; ++i) de += (dstate[i * 32] += to_f32(q[i]) * d) * to_f32(k[i]);
      for (int i = 0; i < n.dk; ++i) dstate[i * 32] = decay * (dstate[i * 32] - to_f32(k[i]) * x.beta[gate] * de);
    }
    float* last = ends.last + (document * n.value_heads + head) * n.state() + column;
    for (int i = 0; i < n.dk; ++i) last[i * n.dv] = dstate[i * 32];
  }
}

// Memory of a block of backward; f32. Gradients of q and k are those of one value head.
struct BackwardMemory {
  float *states, *dq, *dk;      // [chunks, Hv, Dk, Dv], [T, Hv, Dk] each
  float *before;                // [Hv, C + 1, Dk, Dv]: the states before each token of the chunk, and after the last
  float *written, *misses;      // [Hv, C, Dv]: beta (v - a S^T k), and without beta
  float *dstate, *dread;        // [Hv, Dk, Dv], [Hv, Dv]: dS, and the gradient of a S^T k
};
BackwardMemory take_memory(Workspace& w, const Sizes& n) {
  BackwardMemory m{};
  m.states = w.take<float>(n.most_chunks() * n.value_heads * n.state());
  for (float** p : {&m.dq, &m.dk}) *p = w.take<float>(n.tokens * n.value_heads * n.dk);
  m.before = w.take<float>(n.value_heads * (n.chunk + 1) * n.state());
  for (float** p : {&m.written, &m.misses}) *p = w.take<float>(int64_t{n.value_heads} * n.chunk * n.dv);
  m.dstate = w.take<float>(n.value_heads * n.state());
  m.dread = w.take<float>(n.value_heads * n.dv);
  return m;
}
size_t floats(int64_t count) { return aligned_bytes(static_cast<size_t>(count) * sizeof(float)); }
size_t memory_bytes(const Sizes& n) {
  return floats(n.most_chunks() * n.value_heads * n.state()) + 2 * floats(n.tokens * n.value_heads * n.dk) + floats(n.value_heads * (n.chunk + 1) * n.state()) +
         2 * floats(int64_t{n.value_heads} * n.chunk * n.dv) + floats(n.value_heads * n.state()) + floats(n.value_heads * n.dv);
}

// The states of `rows` tokens from `first` on; each thread makes its columns.
template <typename T>
__device__ void remake_states(const Inputs<T>& x, const Sizes& n, int head, int64_t first, int rows, const float* start, float* before, float* written, float* misses) {
#pragma unroll 1
  for (int column = static_cast<int>(threadIdx.x); column < n.dv; column += kThreads) {
#pragma unroll 1
    for (int i = 0; i < n.dk; ++i) before[i * n.dv + column] = start[i * n.dv + column];
#pragma unroll 1
    for (int r = 0; r < rows; ++r) {
      float *from = before + r * n.state() + column, *to = from + n.state(), miss;
      for (int i = 0; i < n.dk; ++i) to[i * n.dv] = from[i * n.dv];
      const int64_t t = first + r, gate = t * n.value_heads + head;
      written[r * n.dv + column] = advance<T>(to, n.dv, nullptr, x.k(t, head / n.group()), to_f32(x.v(t, head)[column]), expf(x.log_decay[gate]), x.beta[gate], n.dk, nullptr, &miss);
      misses[r * n.dv + column] = miss;
    }
  }
}

// One token. With P = a S_{t-1}, e = beta (v - P^T k) and S_t = P + k e^T, from dS_t:
//   dq = scale S_t dO;  dS_t += scale q dO^T;  de = dS_t^T k;  dv = beta de;  dbeta = de . (v - P^T k);  dP = dS_t - k (beta de)^T
//   dk = dS_t e - P (beta de);  dlog_decay = dP . P;  dS_{t-1} = a dP
template <typename T>
__device__ void backward_token(const Inputs<T>& x, const Sizes& n, int head, int64_t t, const float* before, const float* written, const float* misses, const T* dout, T* dv, float* dq,
                               float* dk, float* dstate, float* dread, float* dlog_decay, float* dbeta) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t gate = t * n.value_heads + head;
  const float decay = expf(x.log_decay[gate]), beta = x.beta[gate];
  const T *q = x.q(t, head / n.group()), *k = x.k(t, head / n.group());
  const float* after = before + n.state();
#pragma unroll 1
  for (int i = warp; i < n.dk; i += kWarps) {
    const float query = x.scale * to_f32(q[i]);
    float of_q = 0, of_k = 0;
#pragma unroll 2
    for (int j = lane; j < n.dv; j += 32) {
      const float d = to_f32(dout[j]), moved = dstate[i * n.dv + j] += query * d;
      of_q += after[i * n.dv + j] * d;
      of_k += moved * written[j];
    }
    of_q = warp_sum(of_q), of_k = warp_sum(of_k);
    if (lane == 0) dq[i] = x.scale * of_q, dk[i] = of_k;
  }
  __syncthreads();
  float of_beta = 0;
#pragma unroll 1
  for (int j = static_cast<int>(threadIdx.x); j < n.dv; j += kThreads) {
    float de = 0;
#pragma unroll 1
    for (int i = 0; i < n.dk; ++i) de += dstate[i * n.dv + j] * to_f32(k[i]);
    dv[j] = from_f32<T>(beta * de);
    dread[j] = -beta * de;
    of_beta += de * misses[j];
  }
  of_beta = block_sum<kThreads>(of_beta);
  __syncthreads();
  float of_decay = 0;
#pragma unroll 1
  for (int i = warp; i < n.dk; i += kWarps) {
    const float key = to_f32(k[i]);
    float of_k = 0;
#pragma unroll 2
    for (int j = lane; j < n.dv; j += 32) {
      const float p = decay * before[i * n.dv + j], dp = dstate[i * n.dv + j] + key * dread[j];
      of_k += p * dread[j];
      of_decay += dp * p;
      dstate[i * n.dv + j] = decay * dp;
    }
    of_k = warp_sum(of_k);
    if (lane == 0) dk[i] += of_k;
  }
  of_decay = block_sum<kThreads>(of_decay);
  if (threadIdx.x == 0) dlog_decay[gate] = of_decay, dbeta[gate] = of_beta;
  __syncthreads();
}

// One block per value head.
template <typename T>
__global__ void __launch_bounds__(kThreads, 1) backward_kernel(Inputs<T> x, HeadRows<T> dout, HeadRows<T> dv, float* dlog_decay, float* dbeta, BackwardMemory m, ScanEnds dbehind, Sizes n) {
  const int head = static_cast<int>(blockIdx.x);
  float *before = m.before + int64_t{head} * (n.chunk + 1) * n.state(), *written = m.written + int64_t{head} * n.chunk * n.dv, *misses = m.misses + int64_t{head} * n.chunk * n.dv;
  float *dstate = m.dstate + head * n.state(), *dread = m.dread + head * n.dv;
  for (int64_t document = 0; document < n.documents; ++document) {
    const int64_t begin = x.starts[document], chunks = (x.starts[document + 1] - begin + n.chunk - 1) / n.chunk;
    const float* behind = dbehind.carried(document, head, n.value_heads, n.state());
    for (int64_t i = threadIdx.x; i < n.state(); i += kThreads) dstate[i] = behind ? behind[i] : 0;
    for (int64_t c = chunks; c-- > 0;) {
      const int64_t first = begin + c * n.chunk, left = x.starts[document + 1] - first;
      const int rows = left < n.chunk ? static_cast<int>(left) : n.chunk;
      remake_states(x, n, head, first, rows, m.states + ((begin / n.chunk + document + c) * n.value_heads + head) * n.state(), before, written, misses);
      __syncthreads();
      for (int r = rows; r-- > 0;) {
        const int64_t t = first + r, row = (t * n.value_heads + head) * n.dk;
        backward_token(x, n, head, t, before + r * n.state(), written + r * n.dv, misses + r * n.dv, dout(t, head), dv(t, head), m.dq + row, m.dk + row, dstate, dread, dlog_decay, dbeta);
      }
    }
  }
}

// A key head's gradient is the sum of its value heads'.
template <typename T>
__global__ void sum_groups_kernel(const float* __restrict__ parts, HeadRows<T> to, int64_t count, int64_t heads, int64_t group, int64_t dims) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = i / dims, d = i % dims;
    float sum = 0;
    for (int64_t j = 0; j < group; ++j) sum += parts[(row * group + j) * dims + d];
    to.row(row, heads)[d] = from_f32<T>(sum);
  }
}

template <typename Kernel, typename... Arguments>
void launch_columns(Kernel kernel, const Sizes& n, cudaStream_t stream, const Arguments&... arguments) {
  const size_t shared = static_cast<size_t>(n.dk) * 32 * sizeof(float);
  HYSCALE_CHECK(shared <= 227 * 1024, "q of ", n.dk, " numbers; at most ", 227 * 1024 / 128, " on CUDA");
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "gated_delta");
  const dim3 grid(grid_for(n.documents, 1), static_cast<unsigned>(n.value_heads), grid_for(n.dv, 32));
  kernel<<<grid, 32, shared, stream>>>(arguments..., n);
}

template <typename T>
void launch_forward(const Inputs<T>& x, const Tensor& o, float* states, const ScanEnds& ends, const Sizes& n, cudaStream_t stream) {
  launch_columns(forward_kernel<T>, n, stream, x, HeadRows<T>(o), states == nullptr && !ends.last && !ends.map, states, ends);
}

}  // namespace

void gated_delta_plain(const GatedDelta& g, const CarriedStates& before) {
  const Sizes n(g);
  if (n.tokens == 0 || g.v.elements() == 0) return;
  with_float_type(g.q.dtype(), "gated_delta", [&](auto type) { launch_forward(Inputs<decltype(type)>(g), g.o, nullptr, ScanEnds(before), n, stream_of(g.stream)); });
  check_launch("gated_delta");
}

void gated_delta_backward_plain(const GatedDeltaBackward& g, const CarriedStates& before, const CarriedStates& dbehind) {
  const Sizes n(g);
  if (n.tokens == 0 || g.v.elements() == 0) return;
  const cudaStream_t stream = stream_of(g.stream);
  Workspace workspace(g.workspace);
  const BackwardMemory m = take_memory(workspace, n);
  with_float_type(g.q.dtype(), "gated_delta_backward", [&](auto type) {
    using T = decltype(type);
    const Inputs<T> x(g);
    launch_forward(x, g.v, m.states, ScanEnds(before), n, stream);
    backward_kernel<T>
        <<<static_cast<unsigned>(n.value_heads), kThreads, 0, stream>>>(x, HeadRows<T>(g.dout), HeadRows<T>(g.dv), g.dlog_decay.f32(), g.dbeta.f32(), m, ScanEnds(dbehind), n);
    const int64_t count = n.tokens * n.key_heads * n.dk;
    sum_groups_kernel<T><<<grid_for(count, kThreads), kThreads, 0, stream>>>(m.dq, HeadRows<T>(g.dq), count, n.key_heads, n.group(), n.dk);
    sum_groups_kernel<T><<<grid_for(count, kThreads), kThreads, 0, stream>>>(m.dk, HeadRows<T>(g.dk), count, n.key_heads, n.group(), n.dk);
  });
  check_launch("gated_delta_backward");
}

void delta_map_plain(const GatedDelta& run, const Tensor& map, const Tensor& state) {
  const Sizes n(run);
  with_float_type(run.k.dtype(), "delta_map", [&](auto type) {
    const Inputs<decltype(type)> x(run);
    ScanEnds of_state, of_map;
    of_state.last = state.f32();
    launch_forward(x, run.v, nullptr, of_state, n, stream_of(run.stream));
    if (!map.defined()) return;
    Sizes square = n;
    square.dv = n.dk;
    of_map.map = map.f32();
    launch_forward(x, run.v, nullptr, of_map, square, stream_of(run.stream));
  });
  check_launch("delta_map");
}

void delta_map_backward_plain(const GatedDeltaBackward& run, const Tensor& dstate) {
  with_float_type(run.k.dtype(), "delta_map_backward", [&](auto type) {
    using T = decltype(type);
    ScanEnds ends;
    ends.last = dstate.f32();
    launch_columns(reverse_kernel<T>, Sizes(run), stream_of(run.stream), Inputs<T>(run), HeadRows<T>(run.dout), ends);
  });
  check_launch("delta_map_backward");
}

size_t gated_delta_backward_plain_workspace_bytes(const GatedDeltaBackward& g) { return memory_bytes(Sizes(g)); }

}  // namespace hyscale
