// Block attention on CUDA against the CPU form on the same inputs. In bf16 the results are rounded, and delta is made from
// rounded outputs; the tensor-core form also rounds probabilities and their gradients before the products.
#include "tests/kernels/block_attention/block_case.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::BlockCase;
using test::Both;
using test::HostTensor;

constexpr double kRounding = 6e-3;

void expect_as_on_cpu(const BlockCase& c, DType type, float scale, bool deterministic) {
  SCOPED_TRACE(concat(dtype_name(type), ", ", c.queries(), " queries of ", c.tokens, ", ", c.heads, "/", c.groups, " heads of ", c.dims, ", k ", c.k, deterministic ? ", deterministic" : ""));
  const Shape of_queries{c.queries(), c.heads, c.dims}, of_keys{c.tokens, c.groups, c.dims};
  const Both q(c.q, type), k(c.keys, type), v(c.values, type), dout(c.dout, type), out(HostTensor(of_queries), type), dq(HostTensor(of_queries), type);
  const Both lse = test::f32_out({c.queries(), c.heads}), mass = test::f32_out({c.queries(), c.k});
  const Both dk = test::as_is(test::random(of_keys, 5)), dv = test::as_is(test::random(of_keys, 6));  // sums go on from here
  const Both first = test::as_is(test::ints({static_cast<int64_t>(c.first_token.size())}, c.first_token)), positions = test::as_is(test::ints({c.queries()}, c.positions));
  const Both indices = test::as_is(test::ints({c.queries(), c.k}, c.indices)), counts = test::as_is(test::ints({c.queries()}, c.counts));
  const auto blocks = [&](Device d) { return AttendedBlocks{c.ratio, first[d], positions[d], {indices[d], counts[d]}, c.first_row}; };
  const auto forward = [&](Device d) { return BlockAttentionForward{q[d], k[d], v[d], blocks(d), scale, out[d], lse[d], {}, {}}; };
  const auto backward = [&](Device d) {
    return BlockAttentionBackward{q[d], k[d], v[d], blocks(d), scale, out[d], lse[d], dout[d], dq[d], dk[d], dv[d], mass[d], {}, {}, deterministic};
  };
  test::on_both([&](Device d) { return block_attention_forward_workspace_bytes(forward(d)); },
                [&](Device d, const Tensor& space) {
                  BlockAttentionForward a = forward(d);
                  a.workspace = space;
                  block_attention_forward(a);
                });
  test::on_both([&](Device d) { return block_attention_backward_workspace_bytes(backward(d)); },
                [&](Device d, const Tensor& space) {
                  BlockAttentionBackward a = backward(d);
                  a.workspace = space;
                  block_attention_backward(a);
                });
  const double tolerance = type == DType::bf16 ? kRounding : 2 * test::kF32;
  for (const Both* x : {&out, &dq, &dk, &dv}) EXPECT_AS_ON_CPU(*x, tolerance);
  EXPECT_AS_ON_CPU(lse, test::kF32);
  EXPECT_AS_ON_CPU(mass, 1e-4);
}

TEST(BlockAttentionCuda, AnyShapeIsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{}, {1}, {3}, {4}, {23}, {9, 1, 13}, {150}})
    for (int64_t k : {1, 3, 8, 33})
      for (bool deterministic : {false, true}) {
        const int64_t first = lengths.size() == 3 ? 6 : 0;
        expect_as_on_cpu({lengths, k, first}, DType::f32, 0.7f, deterministic);
        expect_as_on_cpu({lengths, k, first, 12, 2, 32}, DType::bf16, 0.17f, deterministic);
      }
}

TEST(BlockAttentionCuda, QwenShapeIsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t k : {1, 15, 16, 17, 40})
    for (bool deterministic : {false, true}) expect_as_on_cpu({{170, 1, 3, 40}, k, 6, 24, 2, 256}, DType::bf16, 0.0625f, deterministic);
}

// Groups of 5 heads are read query by query; groups of 4, 8 and 16 give 8 or 4 queries whose blocks are united.
TEST(BlockAttentionCuda, OtherGroupsOfHeadsAreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (const auto& [heads, groups] : {std::pair{int64_t{10}, int64_t{2}}, {4, 1}, {24, 3}, {32, 2}})
    for (int64_t k : {1, 17}) expect_as_on_cpu({{90, 1, 3, 40}, k, 6, heads, groups, 256}, DType::bf16, 0.0625f, false);
}

// One block of each 20: queries that choose alike sum dk and dv by reductions; others key tile by key tile, where the sums are 256 MiB.
TEST(BlockAttentionCuda, SharedAndScatteredBlocksAreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (const auto& [tokens, heads, groups] : {std::tuple{int32_t{1402}, int64_t{24}, int64_t{2}}, {1402, 4, 1}, {131202, 24, 2}})
    for (bool shared : {true, false}) {
      BlockCase c({3, tokens}, 16, tokens - 100, heads, groups, 256);
      for (size_t i = 0; i < c.indices.size(); ++i) {
        const size_t query = i / 16, slot = i % 16;
        c.indices[i] = static_cast<int32_t>(20 * slot + (shared ? slot : 7 * query + 3 * slot) % 20);
      }
      expect_as_on_cpu(c, DType::bf16, 0.0625f, false);
    }
}

TEST(BlockAttentionCuda, ATokenMayBeWithoutKeys) {
  SKIP_WITHOUT_CUDA();
  BlockCase small({23, 6}, 3), large({23, 6}, 3, 0, 24, 2, 256);
  for (BlockCase* c : {&small, &large}) c->counts[3] = 0;  // the fourth token ends a block: no tail, and now no block
  expect_as_on_cpu(small, DType::f32, 0.7f, false);
  expect_as_on_cpu(large, DType::bf16, 0.0625f, false);
}

}  // namespace
}  // namespace hyscale
