#include "kernels/newton_schulz/newton_schulz.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;

constexpr NewtonSchulzStep kSteps[] = {{3.4445f, -4.7750f, 2.0315f}, {3.4445f, -4.7750f, 2.0315f}, {2, -1.5f, 0.5f}};

TEST(NewtonSchulzCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (const Shape& shape : {Shape{1, 1, 8}, Shape{3, 7, 4}, Shape{2, 64, 128}, Shape{1, 129, 65}})
    for (const bool narrow : {false, true}) {
      const Both g = test::as_is(test::random(shape, 1)), x = narrow ? test::bf16_out(shape) : test::f32_out(shape);
      const auto op = [&](Device d) { return NewtonSchulz{g[d], x[d], kSteps, {}, {}}; };
      test::on_both(op, newton_schulz_workspace_bytes, newton_schulz);
      // A step multiplies what it rounds by up to 3.4, and products of f32 may pass through TF32.
      EXPECT_AS_ON_CPU(x, narrow ? 3e-2 : 5e-3);
    }
}

}  // namespace
}  // namespace hyscale
