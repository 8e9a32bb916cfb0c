#include "kernels/gate/gate.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

// x is dense; the gates are the columns [from, from + width) of wider heads, with a dtype of their own.
void expect_as_on_cpu(GateActivation a, int64_t tokens, int64_t dims, int64_t width, int64_t from, DType gate_type) {
  SCOPED_TRACE(concat(tokens, " tokens, ", dims, " numbers, ", width, " gates from column ", from, ", ", dtype_name(gate_type)));
  const Shape shape{tokens, 3, dims}, wide{tokens, 3, width + from};
  const Both x = test::in_bf16(test::random(shape, 1)), dy = test::in_bf16(test::random(shape, 2)), y = test::bf16_out(shape), dx = test::bf16_out(shape), in_place(dy.host(), DType::bf16);
  const Both gates(test::random(wide, 3, 2), gate_type), dgates(test::filled(wide, 5), gate_type);
  const auto part = [&](const Tensor& t) { return t.slice(2, from, from + width); };
  test::on_both([&](Device d) {
    gate({x[d], part(gates[d]), a, y[d], {}});
    gate_backward({x[d], part(gates[d]), a, dy[d], dx[d], part(dgates[d]), {}});
    gate_backward({x[d], part(gates[d]), a, in_place[d], in_place[d], part(dgates[d]), {}});
  });
  EXPECT_AS_ON_CPU(y, test::kBf16);
  EXPECT_AS_ON_CPU(dx, test::kBf16);
  EXPECT_AS_ON_CPU(dgates, gate_type == DType::f32 ? test::kF32 : test::kBf16);
  EXPECT_TRUE(test::same_bits(in_place.download(), dx.download()));
}

TEST(GateCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (GateActivation a : {GateActivation::sigmoid, GateActivation::silu})
    for (int64_t tokens : {0, 1, 130})
      for (int64_t dims : {1, 7, 256, 2560})
        for (int64_t from : {0, 8, 3})
          for (DType type : {DType::bf16, DType::f32}) {
            expect_as_on_cpu(a, tokens, dims, dims, from, type);
            expect_as_on_cpu(a, tokens, dims, 1, from, type);
          }
}

}  // namespace
}  // namespace hyscale
