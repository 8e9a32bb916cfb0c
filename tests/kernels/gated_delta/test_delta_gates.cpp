#include "kernels/gated_delta/delta_gates.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

TEST(DeltaGates, ForwardAndBackwardMatchCentralDifferences) {
  for (int64_t tokens : {0, 1, 9}) {
    const Shape shape{tokens, 3};
    const HostTensor a = test::random(shape, 1, 3), b = test::random(shape, 2, 3), a_log = test::random({3}, 3), bias = test::random({3}, 4);
    const HostTensor dlog_decay = test::random(shape, 5), dbeta = test::random(shape, 6);
    HostTensor log_decay(shape), beta(shape), da(shape), db(shape), da_log = test::filled({3}, 0), dbias = test::filled({3}, 0);
    delta_gates({a, b, a_log, bias, log_decay, beta, {}});
    delta_gates_backward({a, a_log, bias, log_decay, beta, dlog_decay, dbeta, da, db, da_log, dbias, {}});
    const auto loss = [&](const std::vector<double>& as, const std::vector<double>& bs, const std::vector<double>& logs, const std::vector<double>& biases) {
      double sum = 0;
      for (size_t i = 0; i < as.size(); ++i) {
        sum += dbeta[static_cast<int64_t>(i)] / (1 + std::exp(-bs[i]));
        sum -= dlog_decay[static_cast<int64_t>(i)] * std::exp(logs[i % 3]) * std::log1p(std::exp(as[i] + biases[i % 3]));
      }
      return sum;
    };
    const std::vector<double> a64 = test::doubles(a), b64 = test::doubles(b), l64 = test::doubles(a_log), d64 = test::doubles(bias);
    EXPECT_CLOSE(da, test::central_differences(a64, [&](const auto& v) { return loss(v, b64, l64, d64); }), 1e-5);
    EXPECT_CLOSE(db, test::central_differences(b64, [&](const auto& v) { return loss(a64, v, l64, d64); }), 1e-5);
    EXPECT_CLOSE(da_log, test::central_differences(l64, [&](const auto& v) { return loss(a64, b64, v, d64); }), 1e-5);
    EXPECT_CLOSE(dbias, test::central_differences(d64, [&](const auto& v) { return loss(a64, b64, l64, v); }), 1e-5);
  }
}

TEST(DeltaGates, LargeInputsStayFinite) {
  HostTensor a({1, 2}), log_decay({1, 2}), beta({1, 2});
  a[0] = 300, a[1] = -300;
  delta_gates({a, a, test::filled({2}, 0), test::filled({2}, 0), log_decay, beta, {}});
  EXPECT_FLOAT_EQ(log_decay[0], -300);
  EXPECT_EQ(log_decay[1], 0);
  EXPECT_EQ(beta[0], 1);
  EXPECT_EQ(beta[1], 0);
}

}  // namespace
}  // namespace hyscale
