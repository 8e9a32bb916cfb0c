// Selection health on CUDA against the CPU, on the same bf16 inputs, in GLM's latent shape and in one without a fast form.
#include "models/selection_health.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::as_is;
using test::Both;
using test::in_bf16;

struct Case {
  int64_t tokens, k, heads, width, values, index_heads, index_width;
};

SelectionHealth::Means measure(Device device, const Case& c, const std::vector<Both>& inputs) {
  Arena scratch(device, "workspace");
  Context ctx;
  ctx.device = device;
  ctx.scratch = &scratch;
  SelectionHealth health(1);
  health.observe(ctx, {0, c.k, inputs[0][device], inputs[1][device], c.values, 0.06f, inputs[2][device], inputs[3][device], inputs[4][device], inputs[5][device], inputs[6][device]});
  return health.means()[0];
}

TEST(SelectionHealthCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (const Case& c : {Case{700, 33, 3, 24, 16, 2, 16}, {9000, 2048, 64, 576, 512, 32, 128}}) {
    std::vector<int32_t> begin(static_cast<size_t>(c.tokens)), end(begin.size());
    for (size_t t = 0; t < end.size(); ++t) end[t] = static_cast<int32_t>(t + 1);
    std::vector<Both> inputs;
    inputs.push_back(in_bf16(test::random({c.tokens, c.heads, c.width}, 1)));
    inputs.push_back(in_bf16(test::random({c.tokens, c.width}, 2)));
    inputs.push_back(in_bf16(test::random({c.tokens, c.index_heads, c.index_width}, 3)));
    inputs.push_back(as_is(test::random({c.tokens, c.index_heads}, 4)));
    inputs.push_back(in_bf16(test::random({c.tokens, c.index_width}, 5)));
    inputs.push_back(as_is(test::ints({c.tokens}, begin)));
    inputs.push_back(as_is(test::ints({c.tokens}, end)));
    const SelectionHealth::Means cpu = measure({}, c, inputs), cuda = measure(test::kCuda, c, inputs);
    EXPECT_EQ(cuda.queries, cpu.queries);
    // Log sums carry the f32 accumulation of bf16 products; scores that nearly tie may swap a key or two of a query.
    EXPECT_NEAR(cuda.recall, cpu.recall, 1e-2);
    EXPECT_NEAR(cuda.neighbours, cpu.neighbours, 2.0 / static_cast<double>(c.k));
    EXPECT_LE(cuda.tied, 1);
  }
}

}  // namespace
}  // namespace hyscale
