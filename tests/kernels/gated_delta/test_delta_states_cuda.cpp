#include "kernels/gated_delta/delta_states.h"
#include "tests/kernels/gated_delta/delta_case.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

using Lengths = std::vector<int32_t>;

constexpr float kScale = 0.5f;
// As in test_gated_delta_cuda.cpp: on tensor cores the state is read as bf16, and so are all products of a chunk.
constexpr double kOnTensorCores = 8e-3;

std::string described(const test::DeltaCase& c, DType dtype) {
  return concat(c.tokens(), " tokens in ", c.starts.size() - 1, " documents, ", c.key_heads, " and ", c.value_heads, " heads of ", c.dk, " and ", c.dv, ", ", dtype_name(dtype));
}

// of_document: which of three states a document begins with, and which gradient comes back to its end.
void expect_carried_as_on_cpu(const test::DeltaCase& c, const std::vector<int32_t>& of_document, DType dtype, double tolerance) {
  SCOPED_TRACE(described(c, dtype));
  const Shape of_keys = c.q.t().shape(), of_values = c.v.t().shape(), of_gates = c.beta.t().shape(), of_states{3, c.value_heads, c.dk, c.dv};
  const auto in = [&](const test::HostTensor& x) { return Both(x, dtype); };
  const auto out = [&](Shape shape) { return Both(test::HostTensor(shape), dtype); };
  const Both q = in(c.q), k = in(c.k), v = in(c.v), dout = in(test::random(of_values, 9)), decay = test::as_is(c.log_decay), beta = test::as_is(c.beta);
  const Both starts = test::as_is(c.document_starts()), which = test::as_is(test::ints({static_cast<int64_t>(of_document.size())}, of_document));
  const Both states = test::as_is(test::random(of_states, 10)), dstates = test::as_is(test::random(of_states, 11));
  const Both o = out(of_values), dq = out(of_keys), dk = out(of_keys), dv = out(of_values), ddecay = test::f32_out(of_gates), dbeta = test::f32_out(of_gates);
  const auto forward = [&](Device d) { return GatedDelta{q[d], k[d], v[d], decay[d], beta[d], starts[d], kScale, 64, o[d], {}, {}}; };
  const auto backward = [&](Device d) {
    return GatedDeltaBackward{q[d], k[d], v[d], decay[d], beta[d], starts[d], kScale, 64, dout[d], dq[d], dk[d], dv[d], ddecay[d], dbeta[d], {}, {}};
  };
  test::on_both([&](Device d) { return gated_delta_workspace_bytes(forward(d)); },
                [&](Device d, const Tensor& space) {
                  GatedDelta g = forward(d);
                  g.workspace = space;
                  gated_delta_carried(g, {states[d], which[d]});
                });
  test::on_both([&](Device d) { return gated_delta_backward_workspace_bytes(backward(d)); },
                [&](Device d, const Tensor& space) {
                  GatedDeltaBackward g = backward(d);
                  g.workspace = space;
                  gated_delta_carried_backward(g, {states[d], which[d]}, {dstates[d], which[d]});
                });
  EXPECT_AS_ON_CPU(o, tolerance);
  EXPECT_AS_ON_CPU(dq, tolerance);
  EXPECT_AS_ON_CPU(dk, tolerance);
  EXPECT_AS_ON_CPU(dv, tolerance);
  EXPECT_AS_ON_CPU(ddecay, tolerance);
  EXPECT_AS_ON_CPU(dbeta, tolerance);
}

void expect_maps_as_on_cpu(const test::DeltaCase& c, DType dtype, double tolerance) {
  SCOPED_TRACE(described(c, dtype));
  const Shape of_state{c.value_heads, c.dk, c.dv};
  const auto in = [&](const test::HostTensor& x) { return Both(x, dtype); };
  const Both q = in(c.q), k = in(c.k), v = in(c.v), dout = in(test::random(c.v.t().shape(), 9)), decay = test::as_is(c.log_decay), beta = test::as_is(c.beta);
  const Both map = test::f32_out({c.value_heads, c.dk, c.dk}), state = test::f32_out(of_state), alone = test::f32_out(of_state), dstate = test::f32_out(of_state);
  for (const bool with_map : {true, false}) {
    const auto forward = [&](Device d) { return DeltaMap{k[d], v[d], decay[d], beta[d], 64, with_map ? map[d] : Tensor(), with_map ? state[d] : alone[d], {}, {}}; };
    test::on_both(forward, delta_map_workspace_bytes, delta_map);
  }
  const auto backward = [&](Device d) { return DeltaMapBackward{q[d], k[d], decay[d], beta[d], kScale, 64, dout[d], dstate[d], {}, {}}; };
  test::on_both(backward, delta_map_backward_workspace_bytes, delta_map_backward);
  EXPECT_AS_ON_CPU(map, tolerance);
  EXPECT_AS_ON_CPU(state, tolerance);
  EXPECT_AS_ON_CPU(dstate, tolerance);
  EXPECT_TRUE(test::same_bits(alone.download(), state.download()));
}

TEST(DeltaStatesCuda, CarriedStatesOfAnySizeAreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  expect_carried_as_on_cpu({Lengths{}, 2, 6, 8, 5}, {}, DType::f32, test::kF32);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const double tolerance = dtype == DType::f32 ? test::kF32 : test::kBf16;
    expect_carried_as_on_cpu({{17}, 2, 6, 8, 5}, {2}, dtype, tolerance);
    expect_carried_as_on_cpu({{40, 0, 1, 15, 99}, 1, 2, 33, 70}, {1, -1, 0, -1, 2}, dtype, tolerance);
  }
}

TEST(DeltaStatesCuda, CarriedStatesOfHeadsOf128AreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (const Lengths& lengths : {Lengths{1}, {64}, {65}, {300}}) expect_carried_as_on_cpu({lengths, 1, 3, 128, 128}, {1}, DType::bf16, kOnTensorCores);
  expect_carried_as_on_cpu({{40, 0, 1, 15, 99, 64}, 2, 4, 128, 128}, {1, -1, 0, -1, 2, 2}, DType::bf16, kOnTensorCores);
  expect_carried_as_on_cpu({{70, 65}, 1, 2, 128, 128}, {1, 0}, DType::f32, test::kF32);
}

// A run without tokens hands on what it is given.
TEST(DeltaStatesCuda, MapsAreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (const int32_t tokens : {0, 1, 64, 65, 200}) {
    expect_maps_as_on_cpu({{tokens}, 2, 6, 8, 5}, DType::f32, test::kF32);
    expect_maps_as_on_cpu({{tokens}, 1, 2, 33, 70}, DType::bf16, test::kF32);  // results are f32
    expect_maps_as_on_cpu({{tokens}, 2, 4, 128, 128, 0.02f}, DType::bf16, kOnTensorCores);
  }
}

}  // namespace
}  // namespace hyscale
