// Times sparse attention forward and backward at GLM's latent shape: 64 heads, 576/512, k = 2048, for random ids and for ids of
// which 64 neighbouring queries share 90%, with 64K and 1M rows. Sampled results are checked against f64 on the host.
// Usage: attention-bench [queries, 8192]
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/memory.h"
#include "core/stream.h"
#include "kernels/index_loss/index_loss.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace hyscale {
namespace {

using bf16 = __nv_bfloat16;
constexpr int kHeads = 64, kDk = 576, kDv = 512, kK = 2048;
const Device kCuda{DeviceType::cuda, 0};

__host__ __device__ uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
__global__ void fill_normal(bf16* to, int64_t count, uint64_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint64_t z = mix(static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull + seed);
    const float u = static_cast<float>((z & 0xffffff) + 1) / 16777217.f, v = static_cast<float>(z >> 24 & 0xffffff) / 16777216.f;
    to[i] = __float2bfloat16(sqrtf(-2 * logf(u)) * cospif(2 * v));
  }
}
// One id from each of k equal ranges of rows; `shared` of ten ranges draw alike for 64 neighbouring queries.
__global__ void fill_ids(int32_t* ids, int32_t* counts, int64_t rows, int shared) {
  const int64_t t = blockIdx.x, range = rows / kK;
  for (int j = static_cast<int>(threadIdx.x); j < kK; j += static_cast<int>(blockDim.x)) {
    const uint64_t owner = j % 10 < shared ? static_cast<uint64_t>(t / 64) : static_cast<uint64_t>(t) + (uint64_t{1} << 40);
    ids[t * kK + j] = static_cast<int32_t>(j * range + static_cast<int64_t>(mix(owner * 4096 + static_cast<uint64_t>(j) + 0x9E3779B97F4A7C15ull) % static_cast<uint64_t>(range)));
  }
  if (threadIdx.x == 0) counts[t] = kK;
}

template <typename T>
std::vector<T> download(const void* from, int64_t count) {
  std::vector<T> to(static_cast<size_t>(count));
  copy_bytes(to.data(), {}, from, kCuda, to.size() * sizeof(T), {});
  synchronize(kCuda, {});
  return to;
}
double value(uint16_t x) { return bf16_to_float(x); }

struct Problem {
  Buffer q, kv, ids, counts, out, lse, dout, dq, dkv, head_sum, workspace;
  SparseAttentionForward forward;
  SparseAttentionBackward backward;
  Problem(int64_t queries, int64_t rows, int shared);
};

Problem::Problem(int64_t queries, int64_t rows, int shared) {
  const auto make = [](Buffer& b, DType dtype, Shape shape, const char* name) {
    b = Buffer(kCuda, static_cast<size_t>(shape.elements()) * dtype_bytes(dtype), name);
    return Tensor(b.data(), dtype, kCuda, shape);
  };
  const Selection selection{make(ids, DType::i32, {queries, kK}, "ids"), make(counts, DType::i32, {queries}, "counts")};
  forward = {make(q, DType::bf16, {queries, kHeads, kDk}, "q"), make(kv, DType::bf16, {rows, kDk}, "kv"), selection, 1.f / 24,
             make(out, DType::bf16, {queries, kHeads, kDv}, "out"), make(lse, DType::f32, {queries, kHeads}, "lse"), {}, {}};
  backward = {forward.q, forward.kv, selection, forward.scale, forward.out, forward.lse, make(dout, DType::bf16, {queries, kHeads, kDv}, "dout"),
              make(dq, DType::bf16, {queries, kHeads, kDk}, "dq"), make(dkv, DType::f32, {rows, kDk}, "dkv"),
              make(head_sum, DType::f32, {queries, kK}, "head_sum"), true, {}, {}};
  backward.workspace = make(workspace, DType::u8, {static_cast<int64_t>(sparse_attention_backward_workspace_bytes(backward))}, "workspace");
  fill_normal<<<2048, 256>>>(static_cast<bf16*>(q.data()), forward.q.elements(), 1);
  fill_normal<<<2048, 256>>>(static_cast<bf16*>(kv.data()), forward.kv.elements(), 2);
  fill_normal<<<2048, 256>>>(static_cast<bf16*>(dout.data()), backward.dout.elements(), 3);
  fill_ids<<<static_cast<unsigned>(queries), 256>>>(static_cast<int32_t*>(ids.data()), static_cast<int32_t*>(counts.data()), rows, shared);
  zero(backward.dkv, {});
}

// Largest relative L2 error of out and dq over sampled (query, head), against f64 from the device's own inputs.
std::pair<double, double> errors(const Problem& p, int64_t queries) {
  double worst_out = 0, worst_dq = 0;
  for (int64_t t : {int64_t{0}, queries / 3, queries - 1}) {
    const int h = static_cast<int>(t % kHeads);
    const auto ids = download<int32_t>(p.forward.selection.indices.i32() + t * kK, kK);
    const auto q = download<uint16_t>(p.forward.q.data<uint16_t>() + (t * kHeads + h) * kDk, kDk);
    const auto dout = download<uint16_t>(p.backward.dout.data<uint16_t>() + (t * kHeads + h) * kDv, kDv);
    const auto got = download<uint16_t>(p.forward.out.data<uint16_t>() + (t * kHeads + h) * kDv, kDv);
    const auto got_dq = download<uint16_t>(p.backward.dq.data<uint16_t>() + (t * kHeads + h) * kDk, kDk);
    std::vector<std::vector<uint16_t>> rows;
    for (int32_t id : ids) rows.push_back(download<uint16_t>(p.forward.kv.data<uint16_t>() + static_cast<int64_t>(id) * kDk, kDk));
    std::vector<double> weight(kK), dp(kK), out(kDv), dq(kDk);
    double total = 0, delta = 0;
    for (int j = 0; j < kK; ++j) {
      for (int d = 0; d < kDk; ++d) weight[j] += value(q[d]) * value(rows[j][d]) / 24;
      total += weight[j] = std::exp(weight[j]);
    }
    for (int j = 0; j < kK; ++j) {
      weight[j] /= total;
      for (int d = 0; d < kDv; ++d) out[d] += weight[j] * value(rows[j][d]), dp[j] += value(dout[d]) * value(rows[j][d]);
      delta += weight[j] * dp[j];
    }
    for (int j = 0; j < kK; ++j)
      for (int d = 0; d < kDk; ++d) dq[d] += weight[j] * (dp[j] - delta) / 24 * value(rows[j][d]);
    const auto error = [](const std::vector<uint16_t>& x, const std::vector<double>& y) {
      double difference = 0, norm = 0;
      for (size_t i = 0; i < y.size(); ++i) difference += std::pow(value(x[i]) - y[i], 2), norm += y[i] * y[i];
      return std::isfinite(difference) ? std::sqrt(difference / norm) : INFINITY;
    };
    worst_out = std::max(worst_out, error(got, out));
    worst_dq = std::max(worst_dq, error(got_dq, dq));
  }
  return {worst_out, worst_dq};
}

template <typename Call>
double median_ms(Call call) {
  std::vector<double> times;
  for (int i = 0; i < 6; ++i) {
    Event start(kCuda), stop(kCuda);
    start.record({});
    call();
    stop.record({});
    stop.synchronize();
    if (i) times.push_back(stop.milliseconds_since(start));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Milliseconds of the index loss behind this backward: 32 heads of 128, weights all one.
double index_loss_ms(const Problem& p, int64_t queries, int64_t rows, bool deterministic) {
  constexpr int kIndexHeads = 32, kIndexDims = 128;
  Buffer q(kCuda, static_cast<size_t>(queries) * kIndexHeads * kIndexDims * 2, "q"), dq(kCuda, q.bytes(), "dq");
  Buffer keys(kCuda, static_cast<size_t>(rows) * kIndexDims * 2, "keys"), dkeys(kCuda, keys.bytes() * 2, "dkeys"), sum(kCuda, 8, "loss");
  const Shape shape{queries, kIndexHeads, kIndexDims};
  IndexLoss l{Tensor(q.data(), DType::bf16, kCuda, shape), {}, Tensor(keys.data(), DType::bf16, kCuda, {rows, kIndexDims}), p.forward.selection,
              p.backward.head_sum, 1.f / static_cast<float>(queries), Tensor(sum.data(), DType::f64, kCuda, {1}), Tensor(dq.data(), DType::bf16, kCuda, shape),
              {}, Tensor(dkeys.data(), DType::f32, kCuda, {rows, kIndexDims}), deterministic, {}, {}};
  const Buffer workspace(kCuda, index_loss_workspace_bytes(l), "workspace");
  l.workspace = Tensor(workspace.data(), DType::u8, kCuda, {static_cast<int64_t>(workspace.bytes())});
  fill_normal<<<2048, 256>>>(static_cast<bf16*>(q.data()), l.q.elements(), 4);
  fill_normal<<<2048, 256>>>(static_cast<bf16*>(keys.data()), l.keys.elements(), 5);
  zero(l.dkeys, {});
  zero(l.loss_sum, {});
  return median_ms([&] { index_loss(l); });
}

int run(int64_t queries) {
  bool right = true;
  std::printf("%-10s %9s | %9s %8s %7s | %9s %8s | %9s %8s | %9s %9s | %8s %8s\n", "ids", "rows", "fwd ms", "TFLOP/s", "TB/s", "bwd ms", "TFLOP/s", "det ms",
              "TFLOP/s", "err out", "err dq", "loss ms", "det ms");
  for (int64_t rows : {int64_t{1} << 16, int64_t{1} << 20})
    for (int shared : {0, 9}) {
      Problem p(queries, rows, shared);
      const double pairs = static_cast<double>(queries) * kK * kHeads;
      const double forward = median_ms([&] { sparse_attention_forward(p.forward); });
      p.backward.deterministic = false;
      const double backward = median_ms([&] { sparse_attention_backward(p.backward); });
      p.backward.deterministic = true;
      const double deterministic = median_ms([&] { sparse_attention_backward(p.backward); });
      const auto [out_error, dq_error] = errors(p, queries);
      right &= out_error < 1e-2 && dq_error < 1e-2;
      const double forward_flop = pairs * 2 * (kDk + kDv), backward_flop = pairs * 2 * (3 * kDk + 2 * kDv);
      std::printf("%-10s %9lld | %9.3f %8.1f %7.2f | %9.3f %8.1f | %9.3f %8.1f | %9.2e %9.2e | %8.3f %8.3f\n", shared ? "64sh90%" : "random",
                  static_cast<long long>(rows), forward, forward_flop / forward * 1e-9, static_cast<double>(queries) * kK * kDk * 2 / forward * 1e-9,
                  backward, backward_flop / backward * 1e-9, deterministic, backward_flop / deterministic * 1e-9, out_error, dq_error,
                  index_loss_ms(p, queries, rows, false), index_loss_ms(p, queries, rows, true));
      std::fflush(stdout);
    }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace hyscale

int main(int argc, char** argv) {
  try {
    return hyscale::run(argc > 1 ? std::atoll(argv[1]) : 8192);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
