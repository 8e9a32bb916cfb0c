#include "kernels/gated_delta/gated_delta.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels/gated_delta/delta_case.h"

namespace hyscale {
namespace {

using test::HostTensor;

struct Inputs {
  std::vector<double> q, k, v, log_decay, beta;
};

struct Case : test::DeltaCase {
  using DeltaCase::DeltaCase;
  Inputs inputs() const { return {test::doubles(q), test::doubles(k), test::doubles(v), test::doubles(log_decay), test::doubles(beta)}; }
};

// The recurrence, token by token.
std::vector<double> recurrence(const Case& c, const Inputs& x, double scale) {
  std::vector<double> out(x.v.size());
  const auto at = [](int64_t t, int64_t heads, int64_t h, int64_t dims) { return static_cast<size_t>((t * heads + h) * dims); };
  for (size_t document = 0; document + 1 < c.starts.size(); ++document)
    for (int64_t h = 0; h < c.value_heads; ++h) {
      std::vector<double> s(static_cast<size_t>(c.dk * c.dv), 0.0);
      for (int64_t t = c.starts[document]; t < c.starts[document + 1]; ++t) {
        const double *q = x.q.data() + at(t, c.key_heads, h / (c.value_heads / c.key_heads), c.dk), *k = x.k.data() + (q - x.q.data());
        const double *v = x.v.data() + at(t, c.value_heads, h, c.dv), beta = x.beta[at(t, c.value_heads, h, 1)];
        for (double& e : s) e *= std::exp(x.log_decay[at(t, c.value_heads, h, 1)]);
        for (int64_t j = 0; j < c.dv; ++j) {
          double read = 0, o = 0;
          for (int64_t i = 0; i < c.dk; ++i) read += s[static_cast<size_t>(i * c.dv + j)] * k[i];
          for (int64_t i = 0; i < c.dk; ++i) o += q[i] * (s[static_cast<size_t>(i * c.dv + j)] += beta * k[i] * (v[j] - read));
          out[at(t, c.value_heads, h, c.dv) + static_cast<size_t>(j)] = scale * o;
        }
      }
    }
  return out;
}

HostTensor forward(const Case& c, int64_t chunk) {
  HostTensor o({c.tokens(), c.value_heads, c.dv});
  GatedDelta g{c.q, c.k, c.v, c.log_decay, c.beta, c.document_starts(), 0.5f, chunk, o, {}, {}};
  const HostTensor starts = c.document_starts(), space = test::workspace(gated_delta_workspace_bytes(g));
  g.document_starts = starts;
  g.workspace = space;
  gated_delta(g);
  return o;
}

struct Gradients {
  HostTensor dq, dk, dv, dlog_decay, dbeta;
};
Gradients backward(const Case& c, int64_t chunk, const HostTensor& dout) {
  Gradients r{HostTensor(c.q.t().shape()), HostTensor(c.k.t().shape()), HostTensor(c.v.t().shape()), HostTensor(c.beta.t().shape()), HostTensor(c.beta.t().shape())};
  const HostTensor starts = c.document_starts();
  GatedDeltaBackward g{c.q, c.k, c.v, c.log_decay, c.beta, starts, 0.5f, chunk, dout, r.dq, r.dk, r.dv, r.dlog_decay, r.dbeta, {}, {}};
  const HostTensor space = test::workspace(gated_delta_backward_workspace_bytes(g));
  g.workspace = space;
  gated_delta_backward(g);
  return r;
}

TEST(GatedDelta, ChunksGiveTheRecurrence) {
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{}, {1}, {16}, {17}, {64}, {65}, {150}, {40, 0, 1, 15, 99}})
    for (int64_t chunk : {1, 16, 64}) {
      const Case c(lengths, 2, 6, 8, 5);
      EXPECT_CLOSE(forward(c, chunk), recurrence(c, c.inputs(), 0.5), 1e-6) << c.tokens() << " tokens, chunk " << chunk;
    }
}

// Decays whose inverse overflows f32: only differences are exponentiated.
TEST(GatedDelta, StrongDecayStaysFinite) {
  const Case c({130}, 1, 2, 8, 5, 40);
  EXPECT_CLOSE(forward(c, 64), recurrence(c, c.inputs(), 0.5), 1e-6);
  const HostTensor dout = test::random(c.v.t().shape(), 9);
  const Gradients a = backward(c, 64, dout), b = backward(c, 1, dout);
  EXPECT_CLOSE(a.dk, test::doubles(b.dk), 1e-5);
  EXPECT_CLOSE(a.dlog_decay, test::doubles(b.dlog_decay), 1e-5);
}

TEST(GatedDelta, BackwardMatchesCentralDifferences) {
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{1}, {37}, {20, 0, 1, 49}})
    for (int64_t chunk : {16, 64}) {
      const Case c(lengths, 1, 2, 3, 2);
      const HostTensor dout = test::random(c.v.t().shape(), 9);
      const Gradients r = backward(c, chunk, dout);
      const Inputs x = c.inputs();
      const std::vector<double> d64 = test::doubles(dout);
      const auto numeric = [&](std::vector<double> Inputs::*member) {
        return test::central_differences(x.*member, [&](const std::vector<double>& values) {
          Inputs moved = x;
          moved.*member = values;
          const std::vector<double> o = recurrence(c, moved, 0.5);
          return std::inner_product(o.begin(), o.end(), d64.begin(), 0.0);
        });
      };
      EXPECT_CLOSE(r.dq, numeric(&Inputs::q), 1e-5);
      EXPECT_CLOSE(r.dk, numeric(&Inputs::k), 1e-5);
      EXPECT_CLOSE(r.dv, numeric(&Inputs::v), 1e-5);
      EXPECT_CLOSE(r.dlog_decay, numeric(&Inputs::log_decay), 1e-5);
      EXPECT_CLOSE(r.dbeta, numeric(&Inputs::beta), 1e-5);
    }
}

TEST(GatedDelta, ADocumentIsTheSameAloneAndPackedAndRunsAreBitEqual) {
  const Case packed({33, 70}, 2, 4, 8, 5);
  const HostTensor o = forward(packed, 16);
  EXPECT_TRUE(test::same_bits(o, forward(packed, 16)));
  Case alone({70}, 2, 4, 8, 5);
  for (const auto& [to, from] : {std::pair{&alone.q, &packed.q}, {&alone.k, &packed.k}, {&alone.v, &packed.v}, {&alone.log_decay, &packed.log_decay}, {&alone.beta, &packed.beta}})
    std::copy_n(from->f32() + from->size() - to->size(), to->size(), to->f32());
  const HostTensor part = forward(alone, 16);
  EXPECT_TRUE(std::equal(part.f32(), part.f32() + part.size(), o.f32() + o.size() - part.size()));
}

}  // namespace
}  // namespace hyscale
