#include "kernels/gated_residual/gated_residual.h"

#include <numeric>

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }
double dot(const std::vector<double>& a, const std::vector<double>& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

std::vector<double> naive_read(const std::vector<double>& normed, const std::vector<double>& gates, size_t streams, size_t columns) {
  std::vector<double> x(normed.size() / streams, 0.0);
  for (size_t i = 0; i < normed.size(); ++i)
    x[i / (streams * columns) * columns + i % columns] += sigmoid(gates[i]) * normed[i] / static_cast<double>(streams);
  return x;
}

// Empty logits: every stream takes y as it is.
std::vector<double> naive_write(const std::vector<double>& r, const std::vector<double>& logits, const std::vector<double>& y, size_t streams, size_t columns) {
  std::vector<double> out(y.size() * streams, 0.0);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = (r.empty() ? 0 : r[i]) + (logits.empty() ? 1 : 2 * sigmoid(logits[i / columns])) * y[i / (streams * columns) * columns + i % columns];
  return out;
}

TEST(GatedResidual, ReadAndItsBackwardMatchCentralDifferences) {
  for (int64_t tokens : {0, 1, 3})
    for (int64_t columns : {1, 7}) {
      const Shape shape{tokens, 4, columns};
      const HostTensor normed = test::random(shape, 1), gates = test::random(shape, 2, 2), dx = test::random({tokens, columns}, 3);
      HostTensor x({tokens, columns}), dnormed(shape), dgates(shape);
      streams_read({normed, gates, x, {}});
      streams_read_backward({normed, gates, dx, dnormed, dgates, {}});
      const std::vector<double> n64 = test::doubles(normed), g64 = test::doubles(gates), d64 = test::doubles(dx);
      const size_t c = static_cast<size_t>(columns);
      EXPECT_CLOSE(x, naive_read(n64, g64, 4, c), 1e-6);
      EXPECT_CLOSE(dnormed, test::central_differences(n64, [&](const auto& v) { return dot(naive_read(v, g64, 4, c), d64); }), 1e-5);
      EXPECT_CLOSE(dgates, test::central_differences(g64, [&](const auto& v) { return dot(naive_read(n64, v, 4, c), d64); }), 1e-5);
    }
}

TEST(GatedResidual, WriteAndItsBackwardMatchCentralDifferences) {
  for (int64_t tokens : {0, 1, 3})
    for (int64_t columns : {1, 7}) {
      const Shape shape{tokens, 4, columns};
      const HostTensor r = test::random(shape, 1), logits = test::random({tokens, 4}, 2, 2), y = test::random({tokens, columns}, 3), dout = test::random(shape, 4);
      HostTensor out(shape), dy({tokens, columns}), dlogits({tokens, 4});
      streams_write({r, logits, y, out, {}});
      streams_write_backward({logits, y, dout, dy, dlogits, {}});
      const std::vector<double> r64 = test::doubles(r), l64 = test::doubles(logits), y64 = test::doubles(y), d64 = test::doubles(dout);
      const size_t c = static_cast<size_t>(columns);
      EXPECT_CLOSE(out, naive_write(r64, l64, y64, 4, c), 1e-6);
      EXPECT_CLOSE(dy, test::central_differences(y64, [&](const auto& v) { return dot(naive_write(r64, l64, v, 4, c), d64); }), 1e-5);
      EXPECT_CLOSE(dlogits, test::central_differences(l64, [&](const auto& v) { return dot(naive_write(r64, v, y64, 4, c), d64); }), 1e-5);
    }
}

TEST(GatedResidual, WithoutGatesARowGoesToEveryStreamAndBackAsASum) {
  const HostTensor y = test::random({3, 5}, 1), dout = test::random({3, 4, 5}, 2), r = test::random({3, 4, 5}, 3);
  HostTensor out({3, 4, 5}), onto = r, dy({3, 5});
  streams_write({{}, {}, y, out, {}});
  streams_write({onto, {}, y, onto, {}});
  streams_write_backward({{}, {}, dout, dy, {}, {}});
  const std::vector<double> y64 = test::doubles(y);
  EXPECT_CLOSE(out, naive_write({}, {}, y64, 4, 5), 1e-7);
  EXPECT_CLOSE(onto, naive_write(test::doubles(r), {}, y64, 4, 5), 1e-6);
  EXPECT_CLOSE(dy, test::central_differences(y64, [&](const auto& v) { return dot(naive_write({}, {}, v, 4, 5), test::doubles(dout)); }), 1e-6);
}

}  // namespace
}  // namespace hyscale
