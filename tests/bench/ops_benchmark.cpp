// The CPU ops of the selection path and the largest of the others, at the sizes of a small model.
#include <benchmark/benchmark.h>

#include "kernels/flash_topk/flash_topk.h"
#include "kernels/gemm/gemm.h"
#include "kernels/index_loss/index_loss.h"
#include "kernels/lm_head_loss/lm_head_loss.h"
#include "kernels/sparse_attention/sparse_attention.h"
#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

struct Problem {
  int64_t tokens, k, heads = 8, dims = 32;
  HostTensor q, weights, keys, begin, end, indices, counts;
  explicit Problem(int64_t t, int64_t kept) : tokens(t), k(kept) {
    q = test::random({t, heads, dims}, 1);
    weights = test::random({t, heads}, 2);
    keys = test::random({t, dims}, 3);
    begin = test::zeros(DType::i32, {t});
    end = test::zeros(DType::i32, {t});
    for (int64_t i = 0; i < t; ++i) end.i32()[i] = static_cast<int32_t>(i + 1);
    indices = HostTensor(DType::i32, {t, k});
    counts = HostTensor(DType::i32, {t});
    select();
  }
  Selection selection() const { return {indices, counts}; }
  void select() {
    HostTensor scores({tokens, k}), kept(DType::i32, {tokens, k}), count(DType::i32, {tokens}), nan(DType::i32, {1});
    FlashTopKState state{k, scores, kept, count, nan};
    flash_topk_begin(state, {});
    FlashTopKUpdate update{q, weights, keys, 0, begin, end, {}, {}};
    const HostTensor space = test::workspace(flash_topk_update_workspace_bytes(state, update));
    update.workspace = space;
    flash_topk_update(state, update);
    flash_topk_finish(state, selection(), {});
  }
};

void flash_topk_cpu(benchmark::State& state) {
  Problem p(state.range(0), state.range(1));
  for (auto _ : state) p.select();
  const double pairs = static_cast<double>(p.tokens) * static_cast<double>(p.tokens + 1) / 2;
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * pairs * static_cast<double>(p.heads * p.dims * state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(flash_topk_cpu)->Args({1024, 96})->Args({4096, 96})->Args({4096, 1024})->Unit(benchmark::kMillisecond)->UseRealTime();

void sparse_attention_cpu(benchmark::State& state) {
  const Problem p(state.range(0), state.range(1));
  const int64_t heads = 6, dk = 80, dv = 64;
  HostTensor q = test::random({p.tokens, heads, dk}, 1), kv = test::random({p.tokens, dk}, 2), out({p.tokens, heads, dv}), lse({p.tokens, heads});
  HostTensor dout = test::random({p.tokens, heads, dv}, 3), dq({p.tokens, heads, dk}), dkv = test::filled({p.tokens, dk}, 0);
  SparseAttentionForward f{q, kv, p.selection(), 0.1f, out, lse, {}, {}};
  const HostTensor forward_space = test::workspace(sparse_attention_forward_workspace_bytes(f));
  f.workspace = forward_space;
  sparse_attention_forward(f);
  SparseAttentionBackward b{q, kv, p.selection(), 0.1f, out, lse, dout, dq, dkv, {}, false, {}, {}};
  const HostTensor backward_space = test::workspace(sparse_attention_backward_workspace_bytes(b));
  b.workspace = backward_space;
  for (auto _ : state) state.range(2) ? sparse_attention_backward(b) : sparse_attention_forward(f);
}
BENCHMARK(sparse_attention_cpu)->ArgNames({"tokens", "k", "backward"})->Args({4096, 96, 0})->Args({4096, 96, 1})->Unit(benchmark::kMillisecond)->UseRealTime();

void index_loss_cpu(benchmark::State& state) {
  const Problem p(state.range(0), state.range(1));
  HostTensor head_sum = test::filled({p.tokens, p.k}, 1), loss = test::zeros(DType::f64, {1}), dq(p.q.t().shape()), dw(p.weights.t().shape());
  HostTensor dkeys = test::filled(p.keys.t().shape(), 0);
  IndexLoss l{p.q, p.weights, p.keys, p.selection(), head_sum, 1, loss, dq, dw, dkeys, false, {}, {}};
  const HostTensor space = test::workspace(index_loss_workspace_bytes(l));
  l.workspace = space;
  for (auto _ : state) index_loss(l);
}
BENCHMARK(index_loss_cpu)->Args({4096, 96})->Unit(benchmark::kMillisecond)->UseRealTime();

void lm_head_loss_cpu(benchmark::State& state) {
  const int64_t tokens = state.range(0), width = 192, vocabulary = state.range(1);
  HostTensor h = test::random({tokens, width}, 1), w = test::random({vocabulary, width}, 2, 0.02f), labels = test::zeros(DType::i32, {tokens});
  HostTensor loss = test::zeros(DType::f64, {1}), dh({tokens, width}), dw = test::filled({vocabulary, width}, 0);
  LmHeadLoss l{h, w, labels, 1, loss, dh, dw, {}, {}};
  const HostTensor space = test::workspace(lm_head_loss_workspace_bytes(l));
  l.workspace = space;
  for (auto _ : state) lm_head_loss(l);
}
BENCHMARK(lm_head_loss_cpu)->Args({4096, 264})->Args({1024, 32000})->Unit(benchmark::kMillisecond)->UseRealTime();

void gemm_cpu(benchmark::State& state) {
  const int64_t n = state.range(0);
  HostTensor a = test::random({n, n}, 1), b = test::random({n, n}, 2), c({n, n});
  for (auto _ : state) gemm({.a = a, .b = b, .c = c});
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(n * n * n * state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(gemm_cpu)->Arg(1024)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace hyscale

BENCHMARK_MAIN();
