#include "kernels/compressor/compressor.h"

#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;
using test::HostTensor;

// Keys and gates are halves of one matrix, as in the model.
void expect_as_on_cpu(const std::vector<int64_t>& lengths, int64_t group, int64_t dims, bool overlap) {
  std::vector<int32_t> first_token, position;
  int64_t tokens = 0;
  for (int64_t n : lengths) {
    for (int64_t i = 0; i < n / group; ++i) first_token.push_back(static_cast<int32_t>(tokens + i * group)), position.push_back(static_cast<int32_t>(i * group));
    tokens += n;
  }
  const int64_t entries = static_cast<int64_t>(position.size()), channels = overlap ? 2 * dims : dims;
  SCOPED_TRACE(concat(tokens, " tokens, groups of ", group, ", ", dims, " numbers, overlap ", overlap));
  const Both both = test::as_is(test::random({tokens, 2 * channels}, 1)), ape = test::as_is(test::random({group, channels}, 2));
  const Both first = test::as_is(test::ints({entries}, first_token)), positions = test::as_is(test::ints({entries}, position));
  const Both out = test::bf16_out({entries, dims}), dout = test::in_bf16(test::random({entries, dims}, 3)), d = test::bf16_out({tokens, 2 * channels});
  const Both dape = test::as_is(test::filled({group, channels}, 1));
  const auto left = [&](const Both& b, Device device) { return b[device].slice(1, 0, channels); };
  const auto right = [&](const Both& b, Device device) { return b[device].slice(1, channels, 2 * channels); };
  test::on_both([&](Device v) { compressor({left(both, v), right(both, v), ape[v], first[v], positions[v], out[v], {}}); });
  const auto op = [&](Device v) {
    return CompressorBackward{left(both, v), right(both, v), ape[v], first[v], positions[v], dout[v], left(d, v), right(d, v), dape[v], {}, {}};
  };
  test::on_both([&](Device v) { return compressor_backward_workspace_bytes(op(v)); },
                [&](Device v, const Tensor& space) {
                  CompressorBackward c = op(v);
                  c.workspace = space;
                  compressor_backward(c);
                });
  EXPECT_AS_ON_CPU(out, test::kBf16);
  EXPECT_AS_ON_CPU(d, test::kBf16);
  EXPECT_AS_ON_CPU(dape, test::kBf16);  // a sum of rounded gradients
}

TEST(CompressorCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {3}, {4}, {9, 2, 0, 12}, {1030, 511}}) {
    expect_as_on_cpu(lengths, 4, 128, true);
    expect_as_on_cpu(lengths, 4, 512, true);
    expect_as_on_cpu(lengths, 4, 5, true);
    expect_as_on_cpu(lengths, 128, 512, false);
  }
}

}  // namespace
}  // namespace hyscale
