// The index loss on CUDA against the CPU reference on the same inputs. In bf16 dq is stored as such (2^-9 relative), and the forms
// on tensor cores round the coefficients of their products to it.
#include "kernels/index_loss/index_loss.h"
#include "tests/support/device_tensors.h"

namespace hyscale {
namespace {

using test::DeviceTensor;
using test::HostTensor;
using test::rounded;

struct Case {
  int64_t queries, heads, dims, rows, k;
  bool weighted;
  DType dtype = DType::bf16;
  bool close = false;  // the student's attention is within some 2% of the teacher's, so gradients are small differences
};

float score(const Case& c, const HostTensor& q, const HostTensor& w, const HostTensor& keys, int64_t t, int64_t row) {
  double sum = 0;
  for (int64_t h = 0; h < c.heads; ++h) {
    double dot = 0;
    for (int64_t d = 0; d < c.dims; ++d) dot += double{q[(t * c.heads + h) * c.dims + d]} * keys[row * c.dims + d];
    sum += (c.weighted ? w[t * c.heads + h] : 1) * std::max(dot, 0.0);
  }
  return static_cast<float>(sum);
}

struct Results {
  HostTensor loss, dq, dweights, dkeys;
};

Results on_cuda(const Case& c, const HostTensor& q, const HostTensor& w, const HostTensor& keys, const HostTensor& indices, const HostTensor& counts,
                const HostTensor& head_sum, const HostTensor& start, bool deterministic) {
  const DeviceTensor dev_q(q, c.dtype), dev_keys(keys, c.dtype), dev_w(w, DType::f32), dev_head_sum(head_sum, DType::f32);
  const DeviceTensor dev_indices(indices, DType::i32), dev_counts(counts, DType::i32), dkeys(start, DType::f32);
  const DeviceTensor loss(test::zeros(DType::f64, {1}), DType::f64), dq(c.dtype, q.t().shape()), dw(DType::f32, w.t().shape());
  IndexLoss l{dev_q, c.weighted ? dev_w : Tensor(), dev_keys, {dev_indices, dev_counts}, dev_head_sum, 0.25f, loss, dq, c.weighted ? dw : Tensor(),
              dkeys, deterministic, {}, {}};
  const DeviceTensor workspace(DType::u8, {static_cast<int64_t>(index_loss_workspace_bytes(l))});
  l.workspace = workspace;
  index_loss(l);
  return {loss.download(), dq.download(), dw.download(), dkeys.download()};
}

void expect_as_reference(const Case& c) {
  SCOPED_TRACE(concat(c.queries, " queries, ", c.heads, " heads of ", c.dims, ", k ", c.k, ", ", dtype_name(c.dtype)));
  const double tolerance = c.dtype == DType::bf16 ? 4e-3 : 1e-5;
  const HostTensor q = rounded(test::random({c.queries, c.heads, c.dims}, 1)), keys = rounded(test::random({c.rows, c.dims}, 2, 0.3f));
  const HostTensor w = test::random({c.queries, c.heads}, 3, 0.3f), start = test::random({c.rows, c.dims}, 4);
  HostTensor indices(DType::i32, {c.queries, c.k}), counts(DType::i32, {c.queries}), head_sum = test::filled({c.queries, c.k}, 0);
  const int64_t wanted[] = {c.k, 0, 1, c.k - 1, 32, 33};
  for (int64_t t = 0; t < c.queries; ++t) {
    const int64_t n = std::min({wanted[t % 6], c.k, c.rows});
    counts.i32()[t] = static_cast<int32_t>(n);
    for (int64_t j = 0; j < c.k; ++j) {
      indices.i32()[t * c.k + j] = j < n ? static_cast<int32_t>(j * c.rows / n) : -1;
      if (j >= n) continue;
      const float other = static_cast<float>((t * 7 + j * 3) % 5);
      head_sum[t * c.k + j] = c.close ? std::exp(score(c, q, w, keys, t, j * c.rows / n) + 0.01f * other) : other + (j == 0);
    }
  }
  HostTensor loss = test::zeros(DType::f64, {1}), dq(q.t().shape()), dw(w.t().shape()), dkeys = start;
  IndexLoss l{q, c.weighted ? w.t() : Tensor(), keys, {indices, counts}, head_sum, 0.25f, loss, dq, c.weighted ? dw.t() : Tensor(), dkeys, false, {}, {}};
  const HostTensor workspace = test::workspace(index_loss_workspace_bytes(l));
  l.workspace = workspace;
  index_loss(l);
  for (bool deterministic : {false, true}) {
    const Results r = on_cuda(c, q, w, keys, indices, counts, head_sum, start, deterministic);
    EXPECT_NEAR(r.loss.f64()[0], loss.f64()[0], 1e-4 * (1 + std::abs(loss.f64()[0])));
    EXPECT_CLOSE(r.dq, test::doubles(dq), tolerance);
    if (c.weighted) {
      EXPECT_CLOSE(r.dweights, test::doubles(dw), 1e-4);
    }
    // What was added, not what was there before.
    HostTensor added = r.dkeys, expected = dkeys;
    for (int64_t i = 0; i < start.t().elements(); ++i) added[i] -= start[i], expected[i] -= start[i];
    EXPECT_CLOSE(added, test::doubles(expected), tolerance);
    if (!deterministic) continue;
    const Results again = on_cuda(c, q, w, keys, indices, counts, head_sum, start, true);
    EXPECT_TRUE(test::same_bits(r.loss, again.loss) && test::same_bits(r.dq, again.dq) && test::same_bits(r.dkeys, again.dkeys));
    if (c.weighted) {
      EXPECT_TRUE(test::same_bits(r.dweights, again.dweights));
    }
  }
}

TEST(IndexLossCuda, IsAsTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const Case& c : {Case{7, 4, 16, 50, 12, true}, Case{7, 32, 128, 300, 200, true}, Case{7, 4, 128, 300, 67, false}, Case{0, 4, 16, 50, 12, true},
                        Case{13, 4, 128, 5000, 512, false}, Case{7, 8, 128, 600, 513, true}, Case{9, 3, 128, 40, 35, true}, Case{7, 12, 128, 300, 67, true},
                        Case{13, 32, 128, 5000, 2048, true}, Case{9, 32, 128, 700, 130, false}, Case{7, 64, 128, 3000, 512, true}, Case{7, 64, 128, 90, 65, true},
                        Case{1030, 32, 128, 300, 20, true}, Case{9, 32, 128, 70000, 300, true},
                        Case{7, 4, 128, 300, 67, true, DType::f32}, Case{7, 32, 128, 300, 200, true, DType::f32}, Case{7, 5, 24, 50, 12, false, DType::f32}})
    expect_as_reference(c);
}

// Where gradients are small differences, their errors are those of the differences, not of what is subtracted.
TEST(IndexLossCuda, GradientsOfACloseStudentAreAsTheReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const Case& c : {Case{7, 32, 128, 3000, 2048, true, DType::bf16, true}, Case{7, 64, 128, 3000, 512, true, DType::bf16, true}, Case{7, 4, 128, 300, 67, true, DType::bf16, true}})
    expect_as_reference(c);
}

}  // namespace
}  // namespace hyscale
