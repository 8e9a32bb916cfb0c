// Sparse attention on CUDA against the CPU reference on the same bf16 inputs. Results are stored as bf16 and probabilities
// are rounded to bf16 (2^-9 relative, half an ulp) before the products, so relative L2 errors of a few 1e-3 are rounding.
#include <algorithm>

#include "kernels/sparse_attention/sparse_attention.h"
#include "tests/support/device_tensors.h"

namespace hyscale {
namespace {

using test::DeviceTensor;
using test::HostTensor;
using test::rounded;
constexpr float kScale = 0.06f;
constexpr double kTolerance = 6e-3;
struct Case {
  int64_t queries, heads, dk, dv, rows, k;
  bool with_sink = false;
};

// Counts run through 0, 1, k - 1, k and what lies beside a tile; indices are ascending, -1 beyond the count.
Selection select(const Case& c, HostTensor& indices, HostTensor& counts) {
  indices = HostTensor(DType::i32, {c.queries, c.k});
  counts = HostTensor(DType::i32, {c.queries});
  const int64_t wanted[] = {c.k, 0, 1, c.k - 1, 64, 65, 63, c.k / 2};
  const Rng rng(9);
  for (int64_t t = 0; t < c.queries; ++t) {
    std::vector<int32_t> all(static_cast<size_t>(c.rows));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[rng.below(static_cast<uint64_t>(t) * 100000 + i, i)]);
    const int64_t n = std::min({wanted[t % 8], c.k, c.rows});
    std::sort(all.begin(), all.begin() + n);
    for (int64_t j = 0; j < c.k; ++j) indices.i32()[t * c.k + j] = j < n ? all[static_cast<size_t>(j)] : -1;
    counts.i32()[t] = static_cast<int32_t>(n);
  }
  return {indices, counts};
}

struct Results {
  HostTensor out, lse, dq, dkv, head_sum, dsink;
};

Results on_cuda(const Case& c, const HostTensor& q, const HostTensor& kv, const HostTensor& dout, const HostTensor& dkv, const HostTensor& indices,
                const HostTensor& counts, const HostTensor& sink, bool deterministic) {
  const DeviceTensor dev_q(q, DType::bf16), dev_kv(kv, DType::bf16), dev_dout(dout, DType::bf16), dev_dkv(dkv, DType::f32);
  const DeviceTensor dev_indices(indices, DType::i32), dev_counts(counts, DType::i32);
  const DeviceTensor out(DType::bf16, {c.queries, c.heads, c.dv}), lse(DType::f32, {c.queries, c.heads});
  const DeviceTensor dq(DType::bf16, {c.queries, c.heads, c.dk}), head_sum(DType::f32, {c.queries, c.k});
  const DeviceTensor dev_sink(sink, DType::f32), dev_dsink(test::filled({c.heads}, 0), DType::f32);
  const Tensor logits = c.with_sink ? static_cast<const Tensor&>(dev_sink) : Tensor(), dlogits = c.with_sink ? static_cast<const Tensor&>(dev_dsink) : Tensor();
  sparse_attention_forward({dev_q, dev_kv, {dev_indices, dev_counts}, kScale, out, lse, {}, {}, logits});
  SparseAttentionBackward b{dev_q, dev_kv, {dev_indices, dev_counts}, kScale, out, lse, dev_dout, dq, dev_dkv, head_sum, deterministic, {}, {}, logits, dlogits};
  const DeviceTensor workspace(DType::u8, {static_cast<int64_t>(sparse_attention_backward_workspace_bytes(b))});
  b.workspace = workspace;
  sparse_attention_backward(b);
  return {out.download(), lse.download(), dq.download(), dev_dkv.download(), head_sum.download(), dev_dsink.download()};
}

void expect_as_reference(const Case& c) {
  SCOPED_TRACE(concat(c.queries, " queries, ", c.heads, " heads, ", c.dk, "/", c.dv, ", k ", c.k));
  HostTensor indices, counts;
  const Selection selection = select(c, indices, counts);
  const HostTensor q = rounded(test::random({c.queries, c.heads, c.dk}, 1)), kv = rounded(test::random({c.rows, c.dk}, 2));
  const HostTensor dout = rounded(test::random({c.queries, c.heads, c.dv}, 3)), start = test::random({c.rows, c.dk}, 4), sink = test::random({c.heads}, 5, 2);
  HostTensor out({c.queries, c.heads, c.dv}), lse({c.queries, c.heads}), dq({c.queries, c.heads, c.dk}), dkv = start, head_sum({c.queries, c.k}), dsink = test::filled({c.heads}, 0);
  const Tensor logits = c.with_sink ? sink.t() : Tensor(), dlogits = c.with_sink ? dsink.t() : Tensor();
  SparseAttentionForward f{q, kv, selection, kScale, out, lse, {}, {}, logits};
  const HostTensor forward_space = test::workspace(sparse_attention_forward_workspace_bytes(f));
  f.workspace = forward_space;
  sparse_attention_forward(f);
  SparseAttentionBackward b{q, kv, selection, kScale, out, lse, dout, dq, dkv, head_sum, false, {}, {}, logits, dlogits};
  const HostTensor backward_space = test::workspace(sparse_attention_backward_workspace_bytes(b));
  b.workspace = backward_space;
  sparse_attention_backward(b);
  for (bool deterministic : {false, true}) {
    const Results r = on_cuda(c, q, kv, dout, start, indices, counts, sink, deterministic);
    EXPECT_CLOSE(r.out, test::doubles(out), kTolerance);
    EXPECT_CLOSE(r.lse, test::doubles(lse), 1e-5);
    // With one row and a sink, delta (made from outputs rounded to bf16) nearly cancels what it is subtracted from.
    EXPECT_CLOSE(r.dq, test::doubles(dq), c.k == 1 && c.with_sink ? 2 * kTolerance : kTolerance);
    EXPECT_CLOSE(r.dkv, test::doubles(dkv), kTolerance);
    EXPECT_CLOSE(r.head_sum, test::doubles(head_sum), 1e-4);
    EXPECT_CLOSE(r.dsink, test::doubles(dsink), kTolerance);
    if (!deterministic) continue;
    const Results again = on_cuda(c, q, kv, dout, start, indices, counts, sink, true);
    EXPECT_TRUE(test::same_bits(r.out, again.out) && test::same_bits(r.dq, again.dq) && test::same_bits(r.dkv, again.dkv) &&
                test::same_bits(r.head_sum, again.head_sum) && test::same_bits(r.dsink, again.dsink));
  }
}

TEST(SparseAttentionCuda, AnyShapeIsAsTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const Case& c : {Case{9, 4, 40, 32, 50, 12}, Case{8, 1, 16, 16, 200, 67}, Case{1, 3, 576, 512, 5, 33}, Case{8, 128, 64, 64, 100, 65}, Case{0, 4, 40, 32, 50, 12}, Case{9, 4, 32, 32, 50, 12, true}})
    expect_as_reference(c);
}

TEST(SparseAttentionCuda, LatentShapeIsAsTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (int64_t heads : {64, 16, 5})
    for (int64_t k : {1, 64, 65, 300}) expect_as_reference({9, heads, 576, 512, 331, k});
}

TEST(SparseAttentionCuda, MoreQueriesThanMultiprocessorsAreAsTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  expect_as_reference({421, 16, 576, 512, 331, 130});
}

TEST(SparseAttentionCuda, SharedRowsWithASinkAreAsTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (int64_t heads : {64, 16, 5})
    for (int64_t k : {1, 64, 65, 300})
      for (bool sink : {false, true}) expect_as_reference({9, heads, 512, 512, 331, k, sink});
}

}  // namespace
}  // namespace hyscale
