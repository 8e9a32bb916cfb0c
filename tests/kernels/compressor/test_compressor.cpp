#include "kernels/compressor/compressor.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;
using Doubles = std::vector<double>;

// Documents of these lengths, one after the other; entries as the model's layout makes them.
struct Layout {
  int64_t tokens = 0, group;
  std::vector<int32_t> first_token, positions;
  Layout(const std::vector<int64_t>& lengths, int64_t m) : group(m) {
    for (int64_t n : lengths) {
      for (int64_t i = 0; i < n / m; ++i) {
        first_token.push_back(static_cast<int32_t>(tokens + i * m));
        positions.push_back(static_cast<int32_t>(i * m));
      }
      tokens += n;
    }
  }
  int64_t entries() const { return static_cast<int64_t>(positions.size()); }
};

Doubles naive(const Layout& l, const Doubles& keys, const Doubles& gates, const Doubles& ape, int64_t dims, int64_t channels) {
  Doubles out;
  for (int64_t e = 0; e < l.entries(); ++e)
    for (int64_t d = 0; d < dims; ++d) {
      const int64_t own = l.first_token[static_cast<size_t>(e)];
      std::vector<std::pair<int64_t, int64_t>> slots;  // token, column
      if (channels == 2 * dims && l.positions[static_cast<size_t>(e)] > 0)
        for (int64_t r = 0; r < l.group; ++r) slots.push_back({own - l.group + r, d});
      for (int64_t r = 0; r < l.group; ++r) slots.push_back({own + r, channels - dims + d});
      double sum = 0, value = 0;
      for (size_t i = 0; i < slots.size(); ++i) {
        const auto [t, c] = slots[i];
        const int64_t r = (static_cast<int64_t>(i) + l.group - static_cast<int64_t>(slots.size()) % l.group) % l.group;
        const double w = std::exp(gates[static_cast<size_t>(t * channels + c)] + ape[static_cast<size_t>(r * channels + c)]);
        sum += w;
        value += w * keys[static_cast<size_t>(t * channels + c)];
      }
      out.push_back(value / sum);
    }
  return out;
}

TEST(Compressor, ForwardAndBackwardMatchTheDefinition) {
  const int64_t dims = 3;
  for (int64_t channels : {dims, 2 * dims})
    for (int64_t group : {1, 4})
      for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {3}, {4}, {9, 2, 0, 12}, {5, 4, 7}}) {
        const Layout l(lengths, group);
        SCOPED_TRACE(concat(channels, " channels, groups of ", group, ", ", l.tokens, " tokens"));
        const HostTensor keys = test::random({l.tokens, channels}, 1), gates = test::random({l.tokens, channels}, 2), ape = test::random({group, channels}, 3);
        const HostTensor first = test::ints({l.entries()}, l.first_token), positions = test::ints({l.entries()}, l.positions), dout = test::random({l.entries(), dims}, 4);
        HostTensor out({l.entries(), dims}), dkeys({l.tokens, channels}), dgates({l.tokens, channels}), dape = test::filled({group, channels}, 1);
        compressor({keys, gates, ape, first, positions, out, {}});
        const Doubles k = test::doubles(keys), g = test::doubles(gates), a = test::doubles(ape), d = test::doubles(dout);
        EXPECT_CLOSE(out, naive(l, k, g, a, dims, channels), 1e-6);
        compressor_backward({keys, gates, ape, first, positions, dout, dkeys, dgates, dape, {}, {}});
        const auto loss = [&](const Doubles& k_, const Doubles& g_, const Doubles& a_) {
          const Doubles y = naive(l, k_, g_, a_, dims, channels);
          double sum = 0;
          for (size_t i = 0; i < y.size(); ++i) sum += y[i] * d[i];
          return sum;
        };
        EXPECT_CLOSE(dkeys, test::central_differences(k, [&](const auto& v) { return loss(v, g, a); }), 1e-5);
        EXPECT_CLOSE(dgates, test::central_differences(g, [&](const auto& v) { return loss(k, v, a); }), 1e-5);
        Doubles expected = test::central_differences(a, [&](const auto& v) { return loss(k, g, v); });
        for (double& x : expected) x += 1;  // accumulated into ones
        EXPECT_CLOSE(dape, expected, 1e-5);
      }
}

TEST(Compressor, HugeGatesStayFiniteAndTakeTheirTokenAlone) {
  const HostTensor keys = test::random({4, 2}, 1), first = test::ints({1}, {0}), positions = test::ints({1}, {0}), ape = test::filled({4, 2}, 0);
  HostTensor gates = test::filled({4, 2}, 0), out({1, 2});
  gates[2 * 2] = 1e4f, gates[3 * 2 + 1] = 1e4f;
  compressor({keys, gates, ape, first, positions, out, {}});
  EXPECT_EQ(out[0], keys[2 * 2]);
  EXPECT_EQ(out[1], keys[3 * 2 + 1]);
}

}  // namespace
}  // namespace hyscale
