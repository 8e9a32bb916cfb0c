// Tensors of more than 2^31 elements: a few rows far apart hold numbers, everything else is zero, and only those rows are looked at.
// The CPU works on the rows alone. An address computed in 32 bits lands elsewhere and shows.
#include <cmath>

#include "kernels/dense_attention/dense_attention.h"
#include "kernels/dense_index_loss/dense_index_loss.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/flash_topk/flash_topk.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/grouped_gemm.h"
#include "kernels/index_loss/index_loss.h"
#include "kernels/lm_head_loss/lm_head_loss.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/selection_pack/selection_pack.h"
#include "kernels/sparse_attention/sparse_attention.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::DeviceTensor;
using test::HostTensor;
using test::kCuda;
using Rows = std::vector<int64_t>;

#define SKIP_WITHOUT_A_LARGE_DEVICE()                                                             \
  SKIP_WITHOUT_CUDA();                                                                            \
  if (cuda_memory_bytes() < size_t{100} << 30) GTEST_SKIP() << "needs a device of 100 GiB, has " << (cuda_memory_bytes() >> 30)

// Zero but for the rows of a host tensor, row i at row at[i].
class SparseRows {
 public:
  SparseRows(DType dtype, Shape shape) : device_(dtype, shape) { zero(device_, {}); }
  SparseRows(DType dtype, Shape shape, const HostTensor& rows, const Rows& at) : SparseRows(dtype, shape) {
    const DeviceTensor narrow(rows, dtype);
    for (size_t i = 0; i < at.size(); ++i) copy(row(at[i]), static_cast<const Tensor&>(narrow).slice(0, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1), {});
    synchronize(kCuda, {});
  }
  operator const Tensor&() const { return device_; }
  HostTensor download(const Rows& at) const {
    Shape shape = static_cast<const Tensor&>(device_).shape();
    shape[0] = static_cast<int64_t>(at.size());
    const DeviceTensor rows(static_cast<const Tensor&>(device_).dtype(), shape);
    for (size_t i = 0; i < at.size(); ++i) copy(static_cast<const Tensor&>(rows).slice(0, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1), row(at[i]), {});
    return rows.download();
  }

 private:
  Tensor row(int64_t i) const { return static_cast<const Tensor&>(device_).slice(0, i, i + 1); }
  DeviceTensor device_;
};

Shape large(Shape shape) {
  EXPECT_GT(shape.elements(), int64_t{1} << 31);
  return shape;
}

HostTensor spread(int64_t rows, const Rows& at, const std::vector<int32_t>& values, int32_t other) {
  HostTensor x(DType::i32, {rows});
  std::fill_n(x.i32(), rows, other);
  for (size_t i = 0; i < at.size(); ++i) x.i32()[at[i]] = values[i];
  return x;
}
HostTensor bf16_random(Shape shape, uint64_t seed) { return test::rounded(test::random(shape, seed)); }

// Rows about each multiple of 2^31 elements that a table reaches, its first and its last.
Rows telling_rows(int64_t rows, int64_t width) {
  const int64_t edge = (int64_t{1} << 31) / width;
  return {0, 1, edge / 2, edge - 1, edge, edge + 1, rows - 1};
}

TEST(LargeCuda, KeyTablesOfAttentionAndTheIndexLoss) {
  SKIP_WITHOUT_A_LARGE_DEVICE();
  const int64_t rows = 3'800'000, dk = 576, dv = 512, heads = 64, queries = 3, k = 7, index_rows = 17'000'000, index_dims = 128, index_heads = 32;
  const Rows at = telling_rows(rows, dk), index_at = telling_rows(index_rows, index_dims);
  const HostTensor compact = bf16_random({7, dk}, 1), q = bf16_random({queries, heads, dk}, 2), dout = bf16_random({queries, heads, dv}, 3);
  HostTensor order(DType::i32, {queries, k}), far(DType::i32, {queries, k}), index_far(DType::i32, {queries, k});
  for (int64_t i = 0; i < queries * k; ++i) {
    order.i32()[i] = static_cast<int32_t>(i % k);
    far.i32()[i] = static_cast<int32_t>(at[static_cast<size_t>(i % k)]);
    index_far.i32()[i] = static_cast<int32_t>(index_at[static_cast<size_t>(i % k)]);
  }
  const HostTensor counts = test::ints({queries}, {7, 3, 6});
  HostTensor out({queries, heads, dv}), lse({queries, heads}), dq({queries, heads, dk}), dkv = test::filled({k, dk}, 0), head_sum({queries, k});
  SparseAttentionForward f{q, compact, {order, counts}, 0.05f, out, lse, {}, {}};
  const HostTensor space = test::workspace(sparse_attention_forward_workspace_bytes(f));
  f.workspace = space;
  sparse_attention_forward(f);
  SparseAttentionBackward b{q, compact, {order, counts}, 0.05f, out, lse, dout, dq, dkv, head_sum, false, {}, {}};
  const HostTensor backward_space = test::workspace(sparse_attention_backward_workspace_bytes(b));
  b.workspace = backward_space;
  sparse_attention_backward(b);
  const DeviceTensor dev_head_sum(head_sum, DType::f32), dev_counts(counts, DType::i32);
  {
    const SparseRows kv(DType::bf16, large({rows, dk}), compact, at);
    const DeviceTensor dev_q(q, DType::bf16), dev_dout(dout, DType::bf16), ids(far, DType::i32), dev_out(DType::bf16, {queries, heads, dv}), dev_lse(DType::f32, {queries, heads});
    const DeviceTensor dev_dq(DType::bf16, {queries, heads, dk}), sums(DType::f32, {queries, k});
    for (bool deterministic : {false, true}) {
      const SparseRows dev_dkv(DType::f32, large({rows, dk}));
      sparse_attention_forward({dev_q, kv, {ids, dev_counts}, 0.05f, dev_out, dev_lse, {}, {}});
      SparseAttentionBackward of_all{dev_q, kv, {ids, dev_counts}, 0.05f, dev_out, dev_lse, dev_dout, dev_dq, dev_dkv, sums, deterministic, {}, {}};
      const DeviceTensor dev_space(DType::u8, {static_cast<int64_t>(sparse_attention_backward_workspace_bytes(of_all))});
      of_all.workspace = dev_space;
      sparse_attention_backward(of_all);
      EXPECT_CLOSE(dev_out.download(), test::doubles(out), 6e-3);
      EXPECT_CLOSE(dev_dq.download(), test::doubles(dq), 6e-3);
      EXPECT_CLOSE(dev_dkv.download(at), test::doubles(dkv), 6e-3);
    }
  }
  const HostTensor index_q = bf16_random({queries, index_heads, index_dims}, 4), index_keys = bf16_random({k, index_dims}, 5), w = test::random({queries, index_heads}, 6, 0.03f);
  HostTensor loss = test::zeros(DType::f64, {1}), dindex_q(index_q.t().shape()), dw(w.t().shape()), dkeys = test::filled({k, index_dims}, 0);
  IndexLoss l{index_q, w, index_keys, {order, counts}, head_sum, 20, loss, dindex_q, dw, dkeys, false, {}, {}};
  const HostTensor loss_space = test::workspace(index_loss_workspace_bytes(l));
  l.workspace = loss_space;
  index_loss(l);
  const SparseRows keys(DType::bf16, large({index_rows, index_dims}), index_keys, index_at);
  const DeviceTensor dev_q(index_q, DType::bf16), dev_w(w, DType::f32), ids(index_far, DType::i32), dev_dq(DType::bf16, index_q.t().shape()), dev_dw(DType::f32, w.t().shape());
  for (bool deterministic : {false, true}) {
    const SparseRows dev_dkeys(DType::f32, large({index_rows, index_dims}));
    const DeviceTensor dev_loss(test::zeros(DType::f64, {1}), DType::f64);
    IndexLoss of_all{dev_q, dev_w, keys, {ids, dev_counts}, dev_head_sum, 20, dev_loss, dev_dq, dev_dw, dev_dkeys, deterministic, {}, {}};
    const DeviceTensor dev_space(DType::u8, {static_cast<int64_t>(index_loss_workspace_bytes(of_all))});
    of_all.workspace = dev_space;
    index_loss(of_all);
    EXPECT_CLOSE(dev_dq.download(), test::doubles(dindex_q), 6e-3);
    EXPECT_CLOSE(dev_dkeys.download(index_at), test::doubles(dkeys), 6e-3);
  }
}

TEST(LargeCuda, SelectionsOfAMillionQueries) {
  SKIP_WITHOUT_A_LARGE_DEVICE();
  const int64_t queries = 1'048'600, k = 2048, heads = 4, dims = 16, keys = 64;
  const Rows at = telling_rows(queries, k);
  const int64_t samples = static_cast<int64_t>(at.size());
  const std::vector<int32_t> last{64, 0, 1, 63, 40, 17, 64};
  HostTensor q({samples, heads, dims}), key_rows({keys, dims});  // small integers: exact scores
  const Rng rng(1);
  for (int64_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(rng.below(static_cast<uint64_t>(i), 5)) - 2;
  for (int64_t i = 0; i < key_rows.size(); ++i) key_rows[i] = static_cast<float>(rng.below(static_cast<uint64_t>(1'000'000 + i), 5)) - 2;
  const HostTensor begin = test::ints({samples}, {0, 0, 0, 3, 2, 0, 5}), end = test::ints({samples}, last);
  HostTensor scores({samples, k}), kept(DType::i32, {samples, k}), kept_counts(DType::i32, {samples}), nan(DType::i32, {1}), indices(DType::i32, {samples, k}), counts(DType::i32, {samples});
  {
    FlashTopKState s{k, scores, kept, kept_counts, nan};
    FlashTopKUpdate u{q, {}, key_rows, 0, begin, end, {}, {}};
    const HostTensor space = test::workspace(flash_topk_update_workspace_bytes(s, u));
    u.workspace = space;
    flash_topk_begin(s, {});
    flash_topk_update(s, u);
    flash_topk_finish(s, {indices, counts}, {});
  }
  const SparseRows all_q(DType::bf16, {queries, heads, dims}, q, at);
  const DeviceTensor dev_keys(key_rows, DType::bf16);
  const DeviceTensor all_begin(spread(queries, at, {0, 0, 0, 3, 2, 0, 5}, 0), DType::i32), all_end(spread(queries, at, last, 0), DType::i32);
  const SparseRows all_indices(DType::i32, large({queries, k}));
  const DeviceTensor all_counts(DType::i32, {queries});
  const Selection selection{all_indices, all_counts};
  {
    const SparseRows all_scores(DType::f32, large({queries, k})), all_kept(DType::i32, large({queries, k}));
    const DeviceTensor all_kept_counts(DType::i32, {queries}), dev_nan(DType::i32, {1});
    FlashTopKState s{k, all_scores, all_kept, all_kept_counts, dev_nan};
    FlashTopKUpdate u{all_q, {}, dev_keys, 0, all_begin, all_end, {}, {}};
    const DeviceTensor space(DType::u8, {static_cast<int64_t>(flash_topk_update_workspace_bytes(s, u))});
    u.workspace = space;
    flash_topk_begin(s, {});
    flash_topk_update(s, u);
    flash_topk_finish(s, selection, {});
    synchronize(kCuda, {});
  }
  EXPECT_TRUE(test::same_bits(all_indices.download(at), indices));
  {
    const SparseRows low(DType::u16, large({queries, k}));
    const DeviceTensor ends(DType::u16, {queries, packed_blocks(keys)});
    pack_selection(selection, {low, ends}, {});
    fill_bytes(all_indices, 0x7E, {});
    unpack_selection({low, ends}, selection, {});
    EXPECT_TRUE(test::same_bits(all_indices.download(at), indices));
  }
  // Attention of one head over the selection; the keys are its rows.
  HostTensor out({samples, heads, dims}), lse({samples, heads}), dq({samples, heads, dims}), dkv = test::filled({keys, dims}, 0), head_sum({samples, k});
  const HostTensor dout = bf16_random({samples, heads, dims}, 7);
  SparseAttentionForward f{q, key_rows, {indices, counts}, 0.1f, out, lse, {}, {}};
  const HostTensor forward_space = test::workspace(sparse_attention_forward_workspace_bytes(f));
  f.workspace = forward_space;
  sparse_attention_forward(f);
  SparseAttentionBackward b{q, key_rows, {indices, counts}, 0.1f, out, lse, dout, dq, dkv, head_sum, false, {}, {}};
  const HostTensor backward_space = test::workspace(sparse_attention_backward_workspace_bytes(b));
  b.workspace = backward_space;
  sparse_attention_backward(b);
  const DeviceTensor all_out(DType::bf16, {queries, heads, dims}), all_lse(DType::f32, {queries, heads}), all_dq(DType::bf16, {queries, heads, dims});
  const DeviceTensor dev_dkv(test::filled({keys, dims}, 0), DType::f32);
  const SparseRows all_dout(DType::bf16, {queries, heads, dims}, dout, at);
  const SparseRows all_head_sum(DType::f32, large({queries, k}));
  sparse_attention_forward({all_q, dev_keys, selection, 0.1f, all_out, all_lse, {}, {}});
  SparseAttentionBackward of_all{all_q, dev_keys, selection, 0.1f, all_out, all_lse, all_dout, all_dq, dev_dkv, all_head_sum, false, {}, {}};
  const DeviceTensor space(DType::u8, {static_cast<int64_t>(sparse_attention_backward_workspace_bytes(of_all))});
  of_all.workspace = space;
  sparse_attention_backward(of_all);
  EXPECT_CLOSE(all_head_sum.download(at), test::doubles(head_sum), 1e-4);
  EXPECT_CLOSE(dev_dkv.download(), test::doubles(dkv), 6e-3);
}

TEST(LargeCuda, ProductsAndTheirOutputs) {
  SKIP_WITHOUT_A_LARGE_DEVICE();
  const DeviceTensor space(DType::u8, {kGemmWorkspaceBytes});
  {
    const int64_t m = 46'400, n = 46'400, k = 16;
    const HostTensor a = bf16_random({m, k}, 1), b = bf16_random({n, k}, 2);
    const DeviceTensor dev_a(a, DType::bf16), dev_b(b, DType::bf16);
    const SparseRows c(DType::bf16, large({m, n}));
    gemm({.a = dev_a, .b = dev_b, .c = c, .transpose_b = true, .workspace = space});
    for (int64_t row : telling_rows(m, n)) {
      HostTensor expected({1, n});
      gemm({.a = a.t().slice(0, row, row + 1), .b = b, .c = expected, .transpose_b = true});
      EXPECT_CLOSE(c.download({row}), test::doubles(expected), test::kBf16);
    }
  }
  const int64_t rows = 1'048'700, n = 2048, k = 8;
  const Rows at = telling_rows(rows, n);
  const HostTensor x = bf16_random({rows, k}, 3), w = bf16_random({1, n, k}, 4), offsets = test::ints({2}, {0, static_cast<int32_t>(rows)});
  const DeviceTensor dev_x(x, DType::bf16), dev_w(w, DType::bf16), dev_offsets(offsets, DType::i32), dx(DType::bf16, {rows, k});
  const SparseRows y(DType::bf16, large({rows, n}));
  grouped_gemm_forward({dev_x, dev_w, y, dev_offsets, {}});
  grouped_gemm_dgrad({dx, dev_w, y, dev_offsets, {}});
  const HostTensor got = y.download(at);
  for (size_t i = 0; i < at.size(); ++i) {
    HostTensor expected({1, n}), expected_dx({1, k});
    gemm({.a = x.t().slice(0, at[i], at[i] + 1), .b = w.t().select(0, 0), .c = expected, .transpose_b = true});
    EXPECT_CLOSE(got.t().slice(0, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1), test::doubles(expected), test::kBf16);
    gemm({.a = got.t().slice(0, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1), .b = w.t().select(0, 0), .c = expected_dx});
    const HostTensor narrow = [&] {
      const DeviceTensor one(DType::bf16, {1, k});
      copy(one, static_cast<const Tensor&>(dx).slice(0, at[i], at[i] + 1), {});
      return one.download();
    }();
    EXPECT_CLOSE(narrow, test::doubles(expected_dx), test::kBf16);
  }
}

TEST(LargeCuda, EmbeddingAndHeadTables) {
  SKIP_WITHOUT_A_LARGE_DEVICE();
  const int64_t vocabulary = 525'000, columns = 4096;
  const Rows at = telling_rows(vocabulary, columns);
  const size_t n = at.size();
  std::vector<int32_t> ids;
  for (int64_t row : at) ids.push_back(static_cast<int32_t>(row));
  const HostTensor tokens = test::ints({static_cast<int64_t>(n)}, ids), rows = bf16_random({static_cast<int64_t>(n), columns}, 1);
  const HostTensor h = test::rounded(test::random({static_cast<int64_t>(n), columns}, 2, 0.02f));
  const SparseRows table(DType::bf16, large({vocabulary, columns}), rows, at);
  const DeviceTensor dev_tokens(tokens, DType::i32), y(DType::bf16, {static_cast<int64_t>(n), columns}), dev_h(h, DType::bf16);
  embedding({dev_tokens, table, y, {}});
  EXPECT_TRUE(test::same_bits(y.download(), rows));
  {
    const SparseRows gradient(DType::f32, large({vocabulary, columns}));
    EmbeddingBackward e{dev_tokens, dev_h, gradient, {}, {}};
    const DeviceTensor space(DType::u8, {static_cast<int64_t>(embedding_backward_workspace_bytes(e))});
    e.workspace = space;
    embedding_backward(e);
    EXPECT_TRUE(test::same_bits(gradient.download(at), h));
  }
  // Logits of rows of zeros are 0, so the softmax over the whole vocabulary has a closed form.
  std::vector<double> dz(n * n), dh(n * static_cast<size_t>(columns)), dw(dh.size());
  double loss = 0;
  for (size_t t = 0; t < n; ++t) {
    std::vector<double> z(n);
    double sum = static_cast<double>(vocabulary) - static_cast<double>(n);
    for (size_t v = 0; v < n; ++v) {
      for (int64_t c = 0; c < columns; ++c) z[v] += double{h[static_cast<int64_t>(t) * columns + c]} * rows[static_cast<int64_t>(v) * columns + c];
      sum += std::exp(z[v]);
    }
    loss += std::log(sum) - z[t];
    for (size_t v = 0; v < n; ++v) {
      const double d = std::exp(z[v]) / sum - (v == t);
      for (size_t c = 0; c < static_cast<size_t>(columns); ++c) {
        dh[t * static_cast<size_t>(columns) + c] += d * rows[static_cast<int64_t>(v * static_cast<size_t>(columns) + c)];
        dw[v * static_cast<size_t>(columns) + c] += d * h[static_cast<int64_t>(t * static_cast<size_t>(columns) + c)];
      }
    }
  }
  const SparseRows dweight(DType::f32, large({vocabulary, columns}));
  const DeviceTensor sum(test::zeros(DType::f64, {1}), DType::f64), dev_dh(DType::bf16, {static_cast<int64_t>(n), columns});
  LmHeadLoss l{dev_h, table, dev_tokens, 1, sum, dev_dh, dweight, {}, {}};
  const DeviceTensor space(DType::u8, {static_cast<int64_t>(lm_head_loss_workspace_bytes(l))});
  l.workspace = space;
  lm_head_loss(l);
  EXPECT_NEAR(sum.download().f64()[0], loss, 1e-5 * loss);
  EXPECT_CLOSE(dev_dh.download(), dh, 2 * test::kBf16);
  EXPECT_CLOSE(dweight.download(at), dw, test::kBf16);
}

TEST(LargeCuda, OpsOverRows) {
  SKIP_WITHOUT_A_LARGE_DEVICE();
  const int64_t rows = 1'048'700, columns = 2048;
  const Rows at = telling_rows(rows, columns);
  const int64_t n = static_cast<int64_t>(at.size());
  const HostTensor some = bf16_random({n, columns}, 1), w = bf16_random({columns}, 2);
  const SparseRows x(DType::bf16, large({rows, columns}), some, at), y(DType::bf16, large({rows, columns}));
  const DeviceTensor dev_w(w, DType::bf16), rstd(DType::f32, {rows});
  HostTensor expected({n, columns}), host_rstd({n});
  rms_norm({some, w, 1e-5f, expected, host_rstd, {}});
  rms_norm({x, dev_w, 1e-5f, y, rstd, {}});
  EXPECT_CLOSE(y.download(at), test::doubles(expected), test::kBf16);
  const SparseRows dx(DType::bf16, large({rows, columns}));
  RmsNormBackward b{x, dev_w, rstd, x, dx, false, {}, {}, {}};
  const DeviceTensor space(DType::u8, {static_cast<int64_t>(rms_norm_backward_workspace_bytes(b))});
  b.workspace = space;
  rms_norm_backward(b);
  HostTensor host_dx({n, columns});
  rms_norm_backward({some, w, host_rstd, some, host_dx, false, {}, {}, {}});
  EXPECT_CLOSE(dx.download(at), test::doubles(host_dx), 2 * test::kBf16);

  add(dx, x, x, {});
  for (int64_t i = 0; i < some.size(); ++i) expected[i] = 2 * some[i];
  EXPECT_CLOSE(dx.download(at), test::doubles(expected), 0);
  cast(dx, x, {});
  EXPECT_CLOSE(dx.download(at), test::doubles(some), 0);
  scale(dx, 0.5f, {});
  for (int64_t i = 0; i < some.size(); ++i) expected[i] = some[i] / 2;
  EXPECT_CLOSE(dx.download(at), test::doubles(expected), 0);

  HostTensor gated({n, columns / 2});
  swiglu({some, gated, {}});
  DeviceTensor half(DType::bf16, {rows, columns / 2});
  swiglu({x, half, {}});
  const DeviceTensor last(DType::bf16, {1, columns / 2});
  copy(last, static_cast<const Tensor&>(half).slice(0, rows - 1, rows), {});
  EXPECT_CLOSE(last.download(), test::doubles(gated.t().slice(0, n - 1, n)), test::kBf16);

  const int64_t heads = 16, dims = columns / heads;
  HostTensor frequencies({dims / 2});
  const std::vector<float> inv_freq = rope_inverse_frequencies(1e4f, dims);
  std::copy(inv_freq.begin(), inv_freq.end(), frequencies.f32());
  std::vector<int32_t> positions;
  for (int64_t row : at) positions.push_back(static_cast<int32_t>(row % 1000));
  const DeviceTensor dev_positions(spread(rows, at, positions, 0), DType::i32), dev_frequencies(frequencies, DType::f32);
  rope({static_cast<const Tensor&>(x).view({rows, heads, dims}), dev_positions, dev_frequencies, true, false, {}});
  HostTensor turned = some;
  rope({turned.t().view({n, heads, dims}), test::ints({n}, positions), frequencies, true, false, {}});
  EXPECT_CLOSE(x.download(at), test::doubles(turned), test::kBf16);
}

TEST(LargeCuda, DenseAttentionAndItsIndexLoss) {
  SKIP_WITHOUT_A_LARGE_DEVICE();
  const int64_t tokens = 131'200, heads = 64, dims = 256, index_heads = 32, index_dims = 128, seen = 100, first = tokens - seen;
  const Rows at{0, tokens / 2, tokens - 1};
  const int64_t n = static_cast<int64_t>(at.size());
  Rows key_at;
  for (int64_t s = first; s < tokens; ++s) key_at.push_back(s);
  const HostTensor q = bf16_random({n, heads, dims}, 1), k = bf16_random({seen, heads, dims}, 2), v = bf16_random({seen, heads, dims}, 3);
  const HostTensor begin = test::ints({n}, {0, 5, 0}), end = test::ints({n}, {100, 70, 1});
  HostTensor out({n, heads, dims}), lse({n, heads});
  DenseAttention a{q, k, v, begin, end, 0.06f, out, lse, {}, {}};
  const HostTensor space = test::workspace(dense_attention_workspace_bytes(a));
  a.workspace = space;
  dense_attention(a);
  const HostTensor index_q = bf16_random({n, index_heads, index_dims}, 4), w = test::random({n, index_heads}, 5, 0.03f), index_keys = bf16_random({seen, index_dims}, 6);
  HostTensor loss = test::zeros(DType::f64, {1}), dq(index_q.t().shape()), dw(w.t().shape()), dkeys = test::filled({seen, index_dims}, 0);
  DenseIndexLoss l{q, k, lse, 0.06f, index_q, w, index_keys, begin, end, {}, 20, loss, dq, dw, dkeys, {}, {}};
  const HostTensor loss_space = test::workspace(dense_index_loss_workspace_bytes(l));
  l.workspace = loss_space;
  dense_index_loss(l);

  const int32_t f = static_cast<int32_t>(first);
  const DeviceTensor all_begin(spread(tokens, at, {f, f + 5, f}, 0), DType::i32), all_end(spread(tokens, at, {f + 100, f + 70, f + 1}, 0), DType::i32);
  const SparseRows all_q(DType::bf16, large({tokens, heads, dims}), q, at), all_k(DType::bf16, large({tokens, heads, dims}), k, key_at), all_v(DType::bf16, large({tokens, heads, dims}), v, key_at);
  const SparseRows all_out(DType::bf16, large({tokens, heads, dims}));
  const DeviceTensor all_lse(DType::f32, {tokens, heads});
  dense_attention({all_q, all_k, all_v, all_begin, all_end, 0.06f, all_out, all_lse, {}, {}});
  EXPECT_CLOSE(all_out.download(at), test::doubles(out), 6e-3);

  const SparseRows all_index_q(DType::bf16, {tokens, index_heads, index_dims}, index_q, at), all_w(DType::f32, {tokens, index_heads}, w, at);
  const SparseRows all_keys(DType::bf16, {tokens, index_dims}, index_keys, key_at), all_dkeys(DType::f32, {tokens, index_dims});
  const DeviceTensor dev_loss(test::zeros(DType::f64, {1}), DType::f64), all_dq(DType::bf16, {tokens, index_heads, index_dims}), all_dw(DType::f32, {tokens, index_heads});
  DenseIndexLoss loss_of_all{all_q, all_k, all_lse, 0.06f, all_index_q, all_w, all_keys, all_begin, all_end, {}, 20, dev_loss, all_dq, all_dw, all_dkeys, {}, {}};
  const DeviceTensor large_space(DType::u8, {static_cast<int64_t>(dense_index_loss_workspace_bytes(loss_of_all))});
  loss_of_all.workspace = large_space;
  dense_index_loss(loss_of_all);
  EXPECT_NEAR(dev_loss.download().f64()[0], loss.f64()[0], 1e-4 * loss.f64()[0]);
  EXPECT_CLOSE(all_dkeys.download(key_at), test::doubles(dkeys), 6e-3);
}

}  // namespace
}  // namespace hyscale
