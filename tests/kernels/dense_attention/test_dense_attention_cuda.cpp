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
};

// Causal documents of `document` tokens; every seventh token sees nothing.
void visible_keys(const Case& c, HostTensor& begin, HostTensor& end) {
  begin = HostTensor(DType::i32, {c.tokens}), end = HostTensor(DType::i32, {c.tokens});
  for (int64_t t = 0; t < c.tokens; ++t) {
    begin.i32()[t] = static_cast<int32_t>((c.before + t) / c.document * c.document);
    end.i32()[t] = t % 7 == 5 ? begin.i32()[t] : static_cast<int32_t>(c.before + t + 1);
  }
}

void expect_as_on_cpu(const Case& c) {
  SCOPED_TRACE(concat(c.tokens, " tokens after ", c.before, " in documents of ", c.document, ", ", c.heads, " heads ", c.dims, "/", c.value_dims, ", indexer ", c.index_heads, " x ", c.index_dims));
  const int64_t keys = c.before + c.tokens;
  HostTensor first, last;
  visible_keys(c, first, last);
  const float scale = 1.5f / std::sqrt(static_cast<float>(c.dims));
  const Both begin = test::as_is(first), end = test::as_is(last), q = test::in_bf16(test::random({c.tokens, c.heads, c.dims}, 1));
  const Both k = test::in_bf16(test::random({keys, c.heads, c.dims}, 2)), v = test::in_bf16(test::random({keys, c.heads, c.value_dims}, 3));
  const Both out = test::bf16_out({c.tokens, c.heads, c.value_dims}), lse = test::f32_out({c.tokens, c.heads});
  const auto attention = [&](Device d) { return DenseAttention{q[d], k[d], v[d], begin[d], end[d], scale, out[d], lse[d], {}, {}}; };
  test::on_both([&](Device d) { return dense_attention_workspace_bytes(attention(d)); },
                [&](Device d, const Tensor& space) {
                  DenseAttention a = attention(d);
                  a.workspace = space;
                  dense_attention(a);
                });
  EXPECT_AS_ON_CPU(out, kTolerance);
  EXPECT_AS_ON_CPU(lse, test::kF32);

  const float spread = 1 / std::sqrt(static_cast<float>(c.index_dims * c.index_heads));
  const Both index_q = test::in_bf16(test::random({c.tokens, c.index_heads, c.index_dims}, 4)), index_w = test::as_is(test::random({c.tokens, c.index_heads}, 5, 2 * spread));
  const Both index_keys = test::in_bf16(test::random({keys, c.index_dims}, 6)), loss = test::as_is(test::zeros(DType::f64, {1}));
  const Both dq = test::bf16_out(index_q.host().t().shape()), dw = test::f32_out(index_w.host().t().shape()), dkeys = test::as_is(test::filled(index_keys.host().t().shape(), 0));
  HostTensor earlier[3];
  for (int run = 0; run < 2; ++run) {
    const auto index = [&](Device d) {
      return DenseIndexLoss{q[d], k[d], lse[d], scale, index_q[d], index_w[d], index_keys[d], begin[d], end[d], 20, loss[d], dq[d], dw[d], dkeys[d], {}, {}};
    };
    test::on_both([&](Device d) { return dense_index_loss_workspace_bytes(index(d)); },
                  [&](Device d, const Tensor& space) {
                    zero(dkeys[d], {});
                    zero(loss[d], {});
                    DenseIndexLoss l = index(d);
                    l.workspace = space;
                    dense_index_loss(l);
                  });
    HostTensor now[3] = {dq.download(), dw.download(), dkeys.download()};
    for (int i = 0; run == 1 && i < 3; ++i) EXPECT_TRUE(test::same_bits(now[i], earlier[i])) << "result " << i << " of the second run";
    std::copy_n(now, 3, earlier);
  }
  const HostTensor total = loss.download();
  EXPECT_NEAR(total.f64()[0], loss.host().f64()[0], 1e-4 * loss.host().f64()[0] + 1e-6);
  EXPECT_AS_ON_CPU(dq, kTolerance);
  EXPECT_AS_ON_CPU(dw, 1e-3);  // f32 throughout; r - p loses digits where they nearly agree
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

TEST(DenseAttentionCuda, MoreQueriesThanABlock) {
  SKIP_WITHOUT_CUDA();
  expect_as_on_cpu({1100, 2, 64, 64, 3, 64, 800});
}

}  // namespace
}  // namespace hyscale
