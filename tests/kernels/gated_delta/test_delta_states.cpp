// A document in runs, with states handed on by their maps, against the document in one.
#include "kernels/gated_delta/delta_states.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

constexpr int64_t kKeyHeads = 1, kHeads = 2, kKeyDim = 4, kValueDim = 3, kChunk = 16;
constexpr float kScale = 0.5f;

struct Inputs {
  HostTensor q, k, v, log_decay, beta, dout;
  explicit Inputs(int64_t tokens)
      : q(test::random({tokens, kKeyHeads, kKeyDim}, 1)), k(test::random({tokens, kKeyHeads, kKeyDim}, 2)), v(test::random({tokens, kHeads, kValueDim}, 3)),
        log_decay(test::random({tokens, kHeads}, 4)), beta(test::random({tokens, kHeads}, 5)), dout(test::random({tokens, kHeads, kValueDim}, 6)) {
    for (int64_t i = 0; i < k.size(); ++i) q[i] *= 0.4f, k[i] *= 0.4f;
    for (int64_t i = 0; i < beta.size(); ++i) log_decay[i] = -0.05f * std::abs(log_decay[i]), beta[i] = 1 / (1 + std::exp(-beta[i]));
  }
};

struct Results {
  HostTensor o, dq, dk, dv, dlog_decay, dbeta;
  explicit Results(const Inputs& x)
      : o(x.v.t().shape()), dq(x.q.t().shape()), dk(x.k.t().shape()), dv(x.v.t().shape()), dlog_decay(x.beta.t().shape()), dbeta(x.beta.t().shape()) {}
};

void run(const Inputs& x, const Tensor& starts, const CarriedStates& before, const CarriedStates& dbehind, Results& r) {
  GatedDelta g{x.q, x.k, x.v, x.log_decay, x.beta, starts, kScale, kChunk, r.o, {}, {}};
  const HostTensor space = test::workspace(gated_delta_workspace_bytes(g));
  g.workspace = space;
  GatedDeltaBackward b{x.q, x.k, x.v, x.log_decay, x.beta, starts, kScale, kChunk, x.dout, r.dq, r.dk, r.dv, r.dlog_decay, r.dbeta, {}, {}};
  const HostTensor backward_space = test::workspace(gated_delta_backward_workspace_bytes(b));
  b.workspace = backward_space;
  if (!before.states.defined()) return gated_delta(g), gated_delta_backward(b);
  gated_delta_carried(g, before);
  gated_delta_carried_backward(b, before, dbehind);
}

// into = M from + into, or M^T from + into, for each head.
void compose(const Tensor& map, const Tensor& from, const Tensor& into, bool transposed) {
  for (int64_t h = 0; h < kHeads; ++h)
    for (int64_t i = 0; i < kKeyDim; ++i)
      for (int64_t j = 0; j < kValueDim; ++j)
        for (int64_t n = 0; n < kKeyDim; ++n)
          into.f32()[(h * kKeyDim + i) * kValueDim + j] +=
              map.f32()[(h * kKeyDim + (transposed ? n : i)) * kKeyDim + (transposed ? i : n)] * from.f32()[(h * kKeyDim + n) * kValueDim + j];
}

TEST(DeltaStates, RunsThatHandOnTheirStatesAreOneDocument) {
  for (const std::vector<int32_t>& edges : {std::vector<int32_t>{0, 16, 48}, {0, 1, 18, 50}, {0, 33, 34, 50, 67}}) {
    const int64_t runs = static_cast<int64_t>(edges.size()) - 1;
    const Inputs x(edges.back());
    Results one(x), cut(x);
    const HostTensor whole = test::ints({2}, {0, edges.back()}), starts = test::ints({runs + 1}, edges);
    run(x, whole, {}, {}, one);
    const Shape of_states{runs, kHeads, kKeyDim, kValueDim};
    HostTensor maps({runs, kHeads, kKeyDim, kKeyDim}), before(of_states), behind(of_states), states(of_states), dstates(of_states);
    std::vector<int32_t> numbers;
    for (int64_t i = 0; i < runs; ++i) {
      const auto part = [&](const HostTensor& t) { return t.t().slice(0, edges[static_cast<size_t>(i)], edges[static_cast<size_t>(i + 1)]); };
      DeltaMap m{part(x.k), part(x.v), part(x.log_decay), part(x.beta), kChunk, maps.t().select(0, i), states.t().select(0, i), {}, {}};
      const HostTensor space = test::workspace(delta_map_workspace_bytes(m));
      m.workspace = space;
      delta_map(m);
      DeltaMapBackward b{part(x.q), part(x.k), part(x.log_decay), part(x.beta), kScale, kChunk, part(x.dout), dstates.t().select(0, i), {}, {}};
      const HostTensor backward_space = test::workspace(delta_map_backward_workspace_bytes(b));
      b.workspace = backward_space;
      delta_map_backward(b);
      numbers.push_back(static_cast<int32_t>(i));
    }
    const int64_t size = kHeads * kKeyDim * kValueDim;
    std::fill_n(before.f32(), size, 0.0f);
    std::fill_n(behind.f32() + (runs - 1) * size, size, 0.0f);
    for (int64_t i = 0; i + 1 < runs; ++i) {
      std::copy_n(states.f32() + i * size, size, before.f32() + (i + 1) * size);
      compose(maps.t().select(0, i), before.t().select(0, i), before.t().select(0, i + 1), false);
    }
    for (int64_t i = runs - 1; i > 0; --i) {
      std::copy_n(dstates.f32() + i * size, size, behind.f32() + (i - 1) * size);
      compose(maps.t().select(0, i), behind.t().select(0, i), behind.t().select(0, i - 1), true);
    }
    const HostTensor of_run = test::ints({runs}, numbers);
    run(x, starts, {before, of_run}, {behind, of_run}, cut);
    EXPECT_CLOSE(cut.o, test::doubles(one.o), 1e-6);
    EXPECT_CLOSE(cut.dq, test::doubles(one.dq), 1e-6);
    EXPECT_CLOSE(cut.dk, test::doubles(one.dk), 1e-6);
    EXPECT_CLOSE(cut.dv, test::doubles(one.dv), 1e-6);
    EXPECT_CLOSE(cut.dlog_decay, test::doubles(one.dlog_decay), 1e-5);
    EXPECT_CLOSE(cut.dbeta, test::doubles(one.dbeta), 1e-6);
  }
}

// Runs without a state begin their documents from zero, among others that take one.
TEST(DeltaStates, RunsWithoutAStateAreDocumentsOfTheirOwn) {
  const Inputs x(40);
  Results plain(x), none(x);
  const HostTensor starts = test::ints({3}, {0, 13, 40}), nobody = test::ints({2}, {-1, -1}), states = test::random({1, kHeads, kKeyDim, kValueDim}, 8);
  run(x, starts, {}, {}, plain);
  run(x, starts, {states, nobody}, {states, nobody}, none);
  EXPECT_TRUE(test::same_bits(plain.o, none.o));
  EXPECT_TRUE(test::same_bits(plain.dk, none.dk));
}

}  // namespace
}  // namespace hyscale
