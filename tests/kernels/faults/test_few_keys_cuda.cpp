// Rows that see 0, 1, k - 1, k and more keys, through selection, attention forward and backward and the index loss, each fed by the
// one before; every workspace and output is full of NaN first. Index scores are multiples of 1/64, exact in any order of summation,
// so both devices select the same keys.
#include "kernels/flash_topk/flash_topk.h"
#include "kernels/index_loss/index_loss.h"
#include "kernels/sparse_attention/sparse_attention.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;
using test::HostTensor;

struct Case {
  int64_t k, heads, key_dims, value_dims, index_heads, index_dims;
};

HostTensor small_integers(Shape shape, uint64_t seed, float unit) {
  HostTensor x(shape);
  const Rng rng(seed);
  for (int64_t i = 0; i < x.size(); ++i) x[i] = unit * (static_cast<float>(rng.below(static_cast<uint64_t>(i), 5)) - 2);
  return x;
}

void expect_as_on_cpu(const Case& c) {
  SCOPED_TRACE(concat("k ", c.k, ", ", c.heads, " heads ", c.key_dims, "/", c.value_dims, ", indexer ", c.index_heads, " x ", c.index_dims));
  const int64_t wanted[] = {0, 1, c.k - 1, c.k, c.k + 1, 2 * c.k + 3}, queries = 12, keys = 2 * c.k + 10;
  HostTensor first(DType::i32, {queries}), last(DType::i32, {queries});
  for (int64_t t = 0; t < queries; ++t) {
    first.i32()[t] = static_cast<int32_t>(t % 7);
    last.i32()[t] = first.i32()[t] + static_cast<int32_t>(wanted[t % 6]);
  }
  const Both begin = test::as_is(first), end = test::as_is(last);
  const Both index_q = test::in_bf16(small_integers({queries, c.index_heads, c.index_dims}, 1, 1)), index_keys = test::in_bf16(small_integers({keys, c.index_dims}, 2, 1));
  const Both index_w = test::as_is(small_integers({queries, c.index_heads}, 3, 1.0f / 64));
  const Both kept_scores = test::f32_out({queries, c.k}), kept = test::as_is(HostTensor(DType::i32, {queries, c.k})), kept_counts = test::as_is(HostTensor(DType::i32, {queries}));
  const Both nan_query = test::as_is(HostTensor(DType::i32, {1})), indices = test::as_is(HostTensor(DType::i32, {queries, c.k})), counts = test::as_is(HostTensor(DType::i32, {queries}));
  const auto state = [&](Device d) { return FlashTopKState{c.k, kept_scores[d], kept[d], kept_counts[d], nan_query[d]}; };
  const auto update = [&](Device d) { return FlashTopKUpdate{index_q[d], index_w[d], index_keys[d], 0, begin[d], end[d], {}, {}}; };
  test::on_both([&](Device d) { return flash_topk_update_workspace_bytes(state(d), update(d)); },
                [&](Device d, const Tensor& space) {
                  FlashTopKState s = state(d);
                  FlashTopKUpdate u = update(d);
                  u.workspace = space;
                  flash_topk_begin(s, {});
                  flash_topk_update(s, u);
                  flash_topk_finish(s, {indices[d], counts[d]}, {});
                  EXPECT_EQ(flash_topk_nan_query(s, {}), -1);
                });
  EXPECT_SAME_AS_ON_CPU(indices);
  EXPECT_SAME_AS_ON_CPU(counts);
  for (int64_t t = 0; t < queries; ++t) EXPECT_EQ(counts.host().i32()[t], std::min(c.k, wanted[t % 6]));

  const Both q = test::in_bf16(test::random({queries, c.heads, c.key_dims}, 4)), kv = test::in_bf16(test::random({keys, c.key_dims}, 5));
  const Both out = test::bf16_out({queries, c.heads, c.value_dims}), lse = test::f32_out({queries, c.heads}), dout = test::in_bf16(test::random({queries, c.heads, c.value_dims}, 6));
  const Both dq = test::bf16_out({queries, c.heads, c.key_dims}), head_sum = test::f32_out({queries, c.k});
  for (bool deterministic : {false, true}) {
    const Both dkv = test::as_is(test::filled({keys, c.key_dims}, 0)), loss = test::as_is(test::zeros(DType::f64, {1})), dindex_q = test::bf16_out(index_q.host().t().shape());
    const Both dindex_w = test::f32_out(index_w.host().t().shape()), dindex_keys = test::as_is(test::filled(index_keys.host().t().shape(), 0));
    const auto forward = [&](Device d) { return SparseAttentionForward{q[d], kv[d], {indices[d], counts[d]}, 0.05f, out[d], lse[d], {}, {}}; };
    const auto backward = [&](Device d) {
      return SparseAttentionBackward{q[d], kv[d], {indices[d], counts[d]}, 0.05f, out[d], lse[d], dout[d], dq[d], dkv[d], head_sum[d], deterministic, {}, {}};
    };
    const auto teach = [&](Device d) {
      return IndexLoss{index_q[d], index_w[d], index_keys[d], {indices[d], counts[d]}, head_sum[d], 20, loss[d], dindex_q[d], dindex_w[d], dindex_keys[d], deterministic, {}, {}};
    };
    test::on_both(forward, sparse_attention_forward_workspace_bytes, sparse_attention_forward);
    test::on_both(backward, sparse_attention_backward_workspace_bytes, sparse_attention_backward);
    test::on_both(teach, index_loss_workspace_bytes, index_loss);
    for (const Both* rounded : {&out, &dq, &dkv, &dindex_q, &dindex_keys}) EXPECT_AS_ON_CPU(*rounded, 6e-3);  // bf16 results, probabilities, score gradients
    EXPECT_AS_ON_CPU(lse, test::kF32);
    EXPECT_AS_ON_CPU(head_sum, 1e-4);
    EXPECT_AS_ON_CPU(dindex_w, 1e-3);
    EXPECT_NEAR(loss.download().f64()[0], loss.host().f64()[0], 1e-4 * loss.host().f64()[0]);
    const HostTensor o = out.download(), l = lse.download(), g = dq.download();
    for (int64_t t = 0; t < queries; t += 6) {
      EXPECT_EQ(l[t * c.heads], -INFINITY);
      EXPECT_EQ(o[t * c.heads * c.value_dims], 0);
      EXPECT_EQ(g[t * c.heads * c.key_dims], 0);
    }
  }
}

TEST(FewKeysCuda, ZeroOneAndAboutKKeysAreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  expect_as_on_cpu({1, 2, 24, 16, 3, 16});
  expect_as_on_cpu({5, 4, 40, 32, 4, 64});
  expect_as_on_cpu({64, 64, 576, 512, 32, 128});
  expect_as_on_cpu({512, 16, 576, 512, 64, 128});
}

}  // namespace
}  // namespace hyscale
