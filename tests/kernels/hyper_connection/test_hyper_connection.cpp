#include "kernels/hyper_connection/hyper_connection.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;
using Doubles = std::vector<double>;

constexpr double kEps = 1e-6;

// The definition, one token at a time, from the projection on. x [T, S, D], u [T, n].
struct Naive {
  Doubles pre, post, comb;
};
Naive naive(const Doubles& x, const Doubles& u, const Doubles& base, const Doubles& scale, size_t tokens, size_t streams, int iterations) {
  Naive r;
  const size_t n = base.size(), width = x.size() / std::max<size_t>(tokens, 1);
  const auto sigmoid = [](double z) { return 1 / (1 + std::exp(-z)); };
  for (size_t t = 0; t < tokens; ++t) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += x[t * width + i] * x[t * width + i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(width) + kEps);
    const auto z = [&](size_t i) { return rstd * u[t * n + i] * scale[i < streams ? 0 : i < 2 * streams ? 1 : 2] + base[i]; };
    for (size_t j = 0; j < streams; ++j) r.pre.push_back(sigmoid(z(j)) + kEps);
    if (n == streams) continue;
    for (size_t k = 0; k < streams; ++k) r.post.push_back(2 * sigmoid(z(streams + k)));
    std::vector<Doubles> m(streams, Doubles(streams));
    for (size_t j = 0; j < streams; ++j) {
      double sum = 0;
      for (size_t k = 0; k < streams; ++k) sum += m[j][k] = std::exp(z(2 * streams + j * streams + k));
      for (size_t k = 0; k < streams; ++k) m[j][k] = m[j][k] / sum + kEps;
    }
    const auto columns = [&] {
      for (size_t k = 0; k < streams; ++k) {
        double sum = kEps;
        for (size_t j = 0; j < streams; ++j) sum += m[j][k];
        for (size_t j = 0; j < streams; ++j) m[j][k] /= sum;
      }
    };
    columns();
    for (int i = 1; i < iterations; ++i) {
      for (size_t j = 0; j < streams; ++j) {
        double sum = kEps;
        for (size_t k = 0; k < streams; ++k) sum += m[j][k];
        for (size_t k = 0; k < streams; ++k) m[j][k] /= sum;
      }
      columns();
    }
    for (size_t j = 0; j < streams; ++j)
      for (size_t k = 0; k < streams; ++k) r.comb.push_back(m[j][k]);
  }
  return r;
}

double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

TEST(HyperConnection, CoefficientsAndTheirBackwardMatchTheDefinition) {
  for (int64_t streams : {1, 2, 4})
    for (int64_t tokens : {0, 1, 3})
      for (bool reads_only : {false, true}) {
        SCOPED_TRACE(concat(streams, " streams, ", tokens, " tokens, reads only ", reads_only));
        const int64_t n = reads_only ? streams : 2 * streams + streams * streams, width = 5;
        const HostTensor x = test::random({tokens, streams, width}, 1), u = test::random({tokens, n}, 2), base = test::random({n}, 3);
        const HostTensor scale = test::random({reads_only ? 1 : 3}, 4);
        HostTensor rstd({tokens}), pre({tokens, streams}), post({tokens, streams}), comb({tokens, streams, streams});
        const auto given = [&](const HostTensor& t) { return reads_only ? Tensor() : t.t(); };
        hc_coefficients({x, u, base, scale, kEps, kEps, 20, rstd, pre, given(post), given(comb), {}});
        const Doubles x64 = test::doubles(x), u64 = test::doubles(u), b64 = test::doubles(base), s64 = test::doubles(scale);
        const auto of = [&](const Doubles& x_, const Doubles& u_, const Doubles& b_, const Doubles& s_) {
          return naive(x_, u_, b_, s_, static_cast<size_t>(tokens), static_cast<size_t>(streams), 20);
        };
        const Naive expected = of(x64, u64, b64, s64);
        EXPECT_CLOSE(pre, expected.pre, 1e-6);
        const HostTensor dpre = test::random({tokens, streams}, 5), dpost = test::random({tokens, streams}, 6), dcomb = test::random({tokens, streams, streams}, 7);
        if (!reads_only) {
          EXPECT_CLOSE(post, expected.post, 1e-6);
          EXPECT_CLOSE(comb, expected.comb, 1e-5);
        }
        HostTensor du({tokens, n}), squares({tokens}), dbase = test::filled({n}, 1), dscale = test::filled(scale.t().shape(), 1);
        HcCoefficientsBackward b{u, base, scale, rstd, streams * width, kEps, 20, dpre, given(dpost), given(dcomb), du, squares, dbase, dscale, {}, {}};
        hc_coefficients_backward(b);
        const auto loss = [&](const Naive& r) {
          return dot(r.pre, test::doubles(dpre)) + (reads_only ? 0 : dot(r.post, test::doubles(dpost)) + dot(r.comb, test::doubles(dcomb)));
        };
        EXPECT_CLOSE(du, test::central_differences(u64, [&](const auto& v) { return loss(of(x64, v, b64, s64)); }), 2e-4);
        // Accumulated into ones.
        Doubles dbase64 = test::central_differences(b64, [&](const auto& v) { return loss(of(x64, u64, v, s64)); });
        Doubles dscale64 = test::central_differences(s64, [&](const auto& v) { return loss(of(x64, u64, b64, v)); });
        for (double& d : dbase64) d += 1;
        for (double& d : dscale64) d += 1;
        EXPECT_CLOSE(dbase, dbase64, 1e-4);
        EXPECT_CLOSE(dscale, dscale64, 1e-4);
        // X reaches the coefficients through its norm only, u given.
        HostTensor dx = test::filled(x.t().shape(), 0);
        const HostTensor no_dh = test::filled({tokens, width}, 0);
        hc_input_gradient({x, pre, no_dh, squares, dx, {}});
        EXPECT_CLOSE(dx, test::central_differences(x64, [&](const auto& v) { return loss(of(v, u64, b64, s64)); }), 2e-4);
      }
}

TEST(HyperConnection, CombIsDoublyStochasticAndItsFirstIndexIsTheSource) {
  // A base that sends stream 0 to stream 1 and nothing back: a transposed comb would show.
  const int64_t streams = 2, n = 8;
  const HostTensor x = test::random({1, streams, 3}, 1), u = test::filled({1, n}, 0), scale = test::filled({3}, 1);
  HostTensor base = test::filled({n}, 0), rstd({1}), pre({1, streams}), post({1, streams}), comb({1, streams, streams});
  base[4] = -3, base[5] = 3, base[6] = 3, base[7] = -3;
  hc_coefficients({x, u, base, scale, kEps, kEps, 20, rstd, pre, post, comb, {}});
  EXPECT_NEAR(comb[0] + comb[1], 1, 1e-4);
  EXPECT_NEAR(comb[0] + comb[2], 1, 1e-4);
  EXPECT_GT(comb[1], 0.9);
  base[6] = -3, base[7] = 3;  // both send to stream 1: columns are normalised last
  hc_coefficients({x, u, base, scale, kEps, kEps, 1, rstd, pre, post, comb, {}});
  EXPECT_NEAR(comb[0] + comb[2], 1, 1e-3);  // eps beside a column of 0.005
  EXPECT_NEAR(comb[1] + comb[3], 1, 1e-3);
  EXPECT_EQ(post[0], 1);        // 2 sigmoid(0), no eps
  EXPECT_NEAR(pre[0], 0.5 + kEps, 1e-7);
}

TEST(HyperConnection, ReadAndWriteMatchTheDefinitionAndCentralDifferences) {
  for (int64_t streams : {1, 3, 4})
    for (int64_t tokens : {0, 1, 3}) {
      const int64_t width = 4;
      const size_t S = static_cast<size_t>(streams), T = static_cast<size_t>(tokens), D = 4;
      const HostTensor x = test::random({tokens, streams, width}, 1), y = test::random({tokens, width}, 2), pre = test::random({tokens, streams}, 3);
      const HostTensor post = test::random({tokens, streams}, 4), comb = test::random({tokens, streams, streams}, 5), dout = test::random({tokens, streams, width}, 6);
      const auto write = [&](const Doubles& x_, const Doubles& y_, const Doubles& post_, const Doubles& comb_) {
        Doubles out;
        for (size_t t = 0; t < T; ++t)
          for (size_t k = 0; k < S; ++k)
            for (size_t i = 0; i < D; ++i) {
              double sum = post_[t * S + k] * y_[t * D + i];
              for (size_t j = 0; j < S; ++j) sum += comb_[(t * S + j) * S + k] * x_[(t * S + j) * D + i];
              out.push_back(sum);
            }
        return out;
      };
      const Doubles x64 = test::doubles(x), y64 = test::doubles(y), p64 = test::doubles(post), c64 = test::doubles(comb), g64 = test::doubles(dout), r64 = test::doubles(pre);
      HostTensor out(x.t().shape()), h({tokens, width}), dx = dout, dy({tokens, width}), dpost({tokens, streams}), dcomb({tokens, streams, streams}), dpre({tokens, streams});
      hc_write({x, y, post, comb, out, {}});
      EXPECT_CLOSE(out, write(x64, y64, p64, c64), 1e-6);
      hc_write_backward({x, y, post, comb, dx, dx, dy, dpost, dcomb, {}});  // in place
      EXPECT_CLOSE(dx, test::central_differences(x64, [&](const auto& v) { return dot(write(v, y64, p64, c64), g64); }), 1e-5);
      EXPECT_CLOSE(dy, test::central_differences(y64, [&](const auto& v) { return dot(write(x64, v, p64, c64), g64); }), 1e-5);
      EXPECT_CLOSE(dpost, test::central_differences(p64, [&](const auto& v) { return dot(write(x64, y64, v, c64), g64); }), 1e-5);
      EXPECT_CLOSE(dcomb, test::central_differences(c64, [&](const auto& v) { return dot(write(x64, y64, p64, v), g64); }), 1e-5);
      const auto read = [&](const Doubles& x_, const Doubles& pre_) {
        Doubles r(T * D);
        for (size_t t = 0; t < T; ++t)
          for (size_t j = 0; j < S; ++j)
            for (size_t i = 0; i < D; ++i) r[t * D + i] += (pre_.empty() ? 1 : pre_[t * S + j]) * x_[(t * S + j) * D + i];
        return r;
      };
      hc_read({x, {}, h, {}});
      EXPECT_CLOSE(h, read(x64, {}), 1e-6);
      hc_read({x, pre, h, {}});
      EXPECT_CLOSE(h, read(x64, r64), 1e-6);
      hc_read_backward({x, y, dpre, {}});
      EXPECT_CLOSE(dpre, test::central_differences(r64, [&](const auto& v) { return dot(read(x64, v), y64); }), 1e-5);
      HostTensor through = test::filled(x.t().shape(), 0);
      hc_input_gradient({x, pre, y, test::filled({tokens}, 0), through, {}});
      EXPECT_CLOSE(through, test::central_differences(x64, [&](const auto& v) { return dot(read(v, r64), y64); }), 1e-5);
    }
}

}  // namespace
}  // namespace hyscale
