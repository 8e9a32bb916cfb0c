// Dense attention and the warm-up index loss on CUDA against the CPU on the same bf16 inputs. Probabilities and score gradients
// are rounded to bf16 before they multiply, so relative L2 errors of a few 1e-3 are rounding.
#include "kernels/dense_attention/dense_attention.h"
#include "kernels/dense_index_loss/dense_index_loss.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;
using test::HostTensor;
constexpr double kTolerance = 6e-3;

struct Case {
  int64_t tokens, heads, dims, value_dims, index_heads, index_dims, document;
  int64_t before = 0;  // keys before the first query's own, as on a rank that owns a later part of the sequence
  int64_t heads_per_key = 1, ratio = 1;  // query heads on one key head; keys of a scored block, whose weights are then ones
};

// Causal documents of `document` tokens; every seventh token sees nothing.
void visible_keys(const Case& c, HostTensor& begin, HostTensor& end) {
  begin = HostTensor(DType::i32, {c.tokens}), end = HostTensor(DType::i32, {c.tokens});
  for (int64_t t = 0; t < c.tokens; ++t) {
    begin.i32()[t] = static_cast<int32_t>((c.before + t) / c.document * c.document);
    end.i32()[t] = t % 7 == 5 ? begin.i32()[t] : static_cast<int32_t>(c.before + t + 1);
  }
}

// Complete blocks of the documents, and those that each query sees.
struct Blocks {
  HostTensor first_token, begin, end;
};
Blocks visible_blocks(const Case& c, const HostTensor& key_end) {
  std::vector<int32_t> firsts;
  std::vector<int64_t> before_document;
  for (int64_t start = 0; start < c.before + c.tokens; start += c.document) {
    before_document.push_back(static_cast<int64_t>(firsts.size()));
    for (int64_t s = start; s + c.ratio <= std::min(start + c.document, c.before + c.tokens); s += c.ratio) firsts.push_back(static_cast<int32_t>(s));
  }
  Blocks b{HostTensor(DType::i32, {static_cast<int64_t>(firsts.size())}), HostTensor(DType::i32, {c.tokens}), HostTensor(DType::i32, {c.tokens})};
  std::copy(firsts.begin(), firsts.end(), b.first_token.i32());
  for (int64_t t = 0; t < c.tokens; ++t) {
    const int64_t document = (c.before + t) / c.document;
    b.begin.i32()[t] = static_cast<int32_t>(before_document[static_cast<size_t>(document)]);
    b.end.i32()[t] = b.begin.i32()[t] + static_cast<int32_t>((key_end.i32()[t] - document * c.document) / c.ratio);
  }
  return b;
}

void expect_as_on_cpu(const Case& c) {
  SCOPED_TRACE(concat(c.tokens, " tokens after ", c.before, " in documents of ", c.document, ", ", c.heads, " heads ", c.dims, "/", c.value_dims, ", indexer ", c.index_heads, " x ", c.index_dims, ", ", c.heads_per_key, " heads per key, blocks of ", c.ratio));
  const int64_t keys = c.before + c.tokens;
  HostTensor first, last;
  visible_keys(c, first, last);
  const float scale = 1.5f / std::sqrt(static_cast<float>(c.dims));
  const Both begin = test::as_is(first), end = test::as_is(last), q = test::in_bf16(test::random({c.tokens, c.heads, c.dims}, 1));
  const Both k = test::in_bf16(test::random({keys, c.heads / c.heads_per_key, c.dims}, 2)),
             v = test::in_bf16(test::random({keys, c.heads / c.heads_per_key, c.value_dims}, 3));
  const Both out = test::bf16_out({c.tokens, c.heads, c.value_dims}), lse = test::f32_out({c.tokens, c.heads});
  const auto attention = [&](Device d) { return DenseAttention{q[d], k[d], v[d], begin[d], end[d], scale, out[d], lse[d], {}, {}}; };
  test::on_both(attention, dense_attention_workspace_bytes, dense_attention);
  EXPECT_AS_ON_CPU(out, kTolerance);
  EXPECT_AS_ON_CPU(lse, test::kF32);

  const float spread = 1 / std::sqrt(static_cast<float>(c.index_dims * c.index_heads));
  const Both index_q = test::in_bf16(test::random({c.tokens, c.index_heads, c.index_dims}, 4)), index_w = test::as_is(test::random({c.tokens, c.index_heads}, 5, 2 * spread));
  const bool in_blocks = c.ratio > 1;
  const Blocks visible = in_blocks ? visible_blocks(c, last) : Blocks{first, first, last};
  const Both first_token = test::as_is(visible.first_token), block_begin = test::as_is(visible.begin), block_end = test::as_is(visible.end);
  const Both index_keys = test::in_bf16(test::random({in_blocks ? visible.first_token.size() : keys, c.index_dims}, 6)), loss = test::as_is(test::zeros(DType::f64, {1}));
  const Both dq = test::bf16_out(index_q.host().t().shape()), dw = test::f32_out(index_w.host().t().shape()), dkeys = test::as_is(test::filled(index_keys.host().t().shape(), 0));
  HostTensor earlier[3];
  for (int run = 0; run < 2; ++run) {
    const auto index = [&](Device d) {
      DenseIndexLoss l{q[d], k[d], lse[d], scale, index_q[d], index_w[d], index_keys[d], begin[d], end[d], {}, 20, loss[d], dq[d], dw[d], dkeys[d], {}, {}};
      if (in_blocks) l.index_weights = l.dindex_weights = Tensor(), l.blocks = {c.ratio, first_token[d], block_begin[d], block_end[d]};
      return l;
    };
    test::on_both([&](Device d) {
      zero(dkeys[d], {});
      zero(loss[d], {});
    });
    test::on_both(index, dense_index_loss_workspace_bytes, dense_index_loss);
    HostTensor now[3] = {dq.download(), dkeys.download(), in_blocks ? HostTensor() : dw.download()};
    for (int i = 0; run == 1 && i < (in_blocks ? 2 : 3); ++i) EXPECT_TRUE(test::same_bits(now[i], earlier[i])) << "result " << i << " of the second run";
    std::copy_n(now, 3, earlier);
  }
  const HostTensor total = loss.download();
  EXPECT_NEAR(total.f64()[0], loss.host().f64()[0], 1e-4 * loss.host().f64()[0] + 1e-6);
  EXPECT_AS_ON_CPU(dq, kTolerance);
  if (!in_blocks) {
    EXPECT_AS_ON_CPU(dw, 1e-3);  // f32 throughout; r - p loses digits where they nearly agree
  }
  EXPECT_AS_ON_CPU(dkeys, kTolerance);
}

TEST(DenseAttentionCuda, PlainShapesAreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 7, 200}) expect_as_on_cpu({tokens, 2, 4, 3, 3, 5, tokens > 100 ? 150 : 3});
}

TEST(DenseAttentionCuda, TiledShapesAreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 63, 64, 65, 128, 129, 300})
    for (int64_t document : {1000, 50}) expect_as_on_cpu({tokens, 3, 40, 24, 5, 32, document});
  expect_as_on_cpu({257, 2, 256, 256, 4, 128, 1000});
  expect_as_on_cpu({100, 2, 64, 64, 4, 128, 1000, 77});
  expect_as_on_cpu({150, 1, 192, 128, 2, 256, 90});
  expect_as_on_cpu({150, 2, 576, 256, 3, 64, 150});  // attention takes its plain form, the loss does not
}

TEST(DenseAttentionCuda, GroupedQueriesAndScoredBlocksAreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 7, 90}) expect_as_on_cpu({tokens, 4, 6, 3, 3, 5, 37, 0, 2, 4});  // plain
  for (int64_t tokens : {1, 3, 64, 130, 300})
    for (int64_t document : {1000, 50}) expect_as_on_cpu({tokens, 6, 64, 64, 4, 32, document, 0, 3, 4});
  expect_as_on_cpu({200, 24, 256, 256, 4, 128, 150, 0, 12, 4});
  expect_as_on_cpu({100, 4, 64, 64, 4, 128, 1000, 77, 2, 4});
}

TEST(DenseAttentionCuda, MoreQueriesThanABlock) {
  SKIP_WITHOUT_CUDA();
  expect_as_on_cpu({1100, 4, 64, 64, 3, 64, 800, 0, 2, 4});
  expect_as_on_cpu({1100, 2, 64, 64, 3, 64, 800});
}

}  // namespace
}  // namespace hyscale
