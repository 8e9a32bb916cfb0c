#include "kernels/gated_delta/gated_delta.h"
#include "tests/kernels/gated_delta/delta_case.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

using Lengths = std::vector<int32_t>;

// The CPU form in chunks of 64, in which its own tests hold it against the recurrence. dtype: on the device.
void expect_as_on_cpu(const test::DeltaCase& c, int64_t chunk, DType dtype, double tolerance) {
  SCOPED_TRACE(concat(c.tokens(), " tokens in ", c.starts.size() - 1, " documents, ", c.key_heads, " and ", c.value_heads, " heads of ", c.dk, " and ", c.dv, ", chunk ", chunk, ", ",
                      dtype_name(dtype)));
  const Shape of_keys = c.q.t().shape(), of_values = c.v.t().shape(), of_gates = c.beta.t().shape();
  const auto in = [&](const test::HostTensor& x) { return Both(x, dtype); };
  const auto out = [&](Shape shape) { return Both(test::HostTensor(shape), dtype); };
  const Both q = in(c.q), k = in(c.k), v = in(c.v), dout = in(test::random(of_values, 9)), decay = test::as_is(c.log_decay), beta = test::as_is(c.beta);
  const Both starts = test::as_is(c.document_starts());
  const Both o = out(of_values), dq = out(of_keys), dk = out(of_keys), dv = out(of_values), ddecay = test::f32_out(of_gates), dbeta = test::f32_out(of_gates);
  const auto chunk_on = [&](Device d) { return d.is_cuda() ? chunk : 64; };
  const auto forward = [&](Device d) { return GatedDelta{q[d], k[d], v[d], decay[d], beta[d], starts[d], 0.5f, chunk_on(d), o[d], {}, {}}; };
  const auto backward = [&](Device d) {
    return GatedDeltaBackward{q[d], k[d], v[d], decay[d], beta[d], starts[d], 0.5f, chunk_on(d), dout[d], dq[d], dk[d], dv[d], ddecay[d], dbeta[d], {}, {}};
  };
  test::on_both(forward, gated_delta_workspace_bytes, gated_delta);
  test::on_both(backward, gated_delta_backward_workspace_bytes, gated_delta_backward);
  EXPECT_AS_ON_CPU(o, tolerance);
  EXPECT_AS_ON_CPU(dq, tolerance);
  EXPECT_AS_ON_CPU(dk, tolerance);
  EXPECT_AS_ON_CPU(dv, tolerance);
  EXPECT_AS_ON_CPU(ddecay, tolerance);
  EXPECT_AS_ON_CPU(dbeta, tolerance);
}

TEST(GatedDeltaCuda, AnySizeIsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (const Lengths& lengths : {Lengths{}, {1}, {16}, {17}, {65}, {40, 0, 1, 15, 99}})
    for (int64_t chunk : {16, 64}) {
      expect_as_on_cpu({lengths, 2, 6, 8, 5}, chunk, DType::f32, test::kF32);
      expect_as_on_cpu({lengths, 1, 2, 33, 70}, chunk, DType::bf16, test::kBf16);
    }
}

// On tensor cores U, W, V', T, S and their gradients are rounded to bf16 on the way, each by 1.1e-3 in the mean square.
constexpr double kOnTensorCores = 8e-3;

TEST(GatedDeltaCuda, HeadsOf128AreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (const Lengths& lengths : {Lengths{1}, {63}, {64}, {65}, {300}, {40, 0, 1, 15, 99, 64, 128, 1}})
    for (int64_t chunk : {16, 64}) {
      expect_as_on_cpu({lengths, 1, 3, 128, 128}, chunk, DType::f32, test::kF32);
      expect_as_on_cpu({lengths, 2, 4, 128, 128}, chunk, DType::bf16, chunk == 64 ? kOnTensorCores : test::kBf16);
    }
}

// Decays whose inverse overflows f32.
TEST(GatedDeltaCuda, StrongDecayStaysFinite) {
  SKIP_WITHOUT_CUDA();
  expect_as_on_cpu({{130}, 1, 2, 8, 5, 40}, 64, DType::f32, test::kF32);
  expect_as_on_cpu({{130}, 1, 2, 128, 128, 40}, 64, DType::bf16, kOnTensorCores);
}

}  // namespace
}  // namespace hyscale
