#include "kernels/lm_head_loss/lm_head_loss.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/op.h"
#include "kernels/gemm/gemm.h"
#include "kernels/lm_head_loss/cross_entropy.h"

namespace hyscale {

void cross_entropy_cuda(const CrossEntropy&);

namespace {

void cross_entropy_ref(const CrossEntropy& c) {
  const int64_t rows = c.logits.size(0), vocabulary = c.logits.size(1);
#pragma omp parallel for
  for (int64_t t = 0; t < rows; ++t) {
    const float* z = c.logits.f32() + t * vocabulary;
    const int32_t label = c.labels.i32()[t];
    double& loss = c.loss_rows.data<double>()[t];
    loss = 0;
    if (label < 0) {
      if (c.dlogits.defined()) std::fill_n(c.dlogits.f32() + t * vocabulary, vocabulary, 0.0f);
      continue;
    }
    const float top = *std::max_element(z, z + vocabulary);
    const float z_label = z[label];
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = 0; v < vocabulary; ++v) sum += static_cast<double>(std::exp(z[v] - top));
    loss = std::log(sum) + top - z_label;
    if (!c.dlogits.defined()) continue;
    float* d = c.dlogits.f32() + t * vocabulary;
    const float factor = static_cast<float>(c.grad_scale / sum);
#pragma omp simd
    for (int64_t v = 0; v < vocabulary; ++v) d[v] = factor * std::exp(z[v] - top);
    d[label] -= c.grad_scale;
  }
  for (int64_t t = 0; t < rows; ++t) c.loss_sum.data<double>()[0] += c.loss_rows.data<double>()[t];
}

// Tokens of one chunk: enough rows to keep the GEMM busy, at most 256 MiB of logits.
int64_t chunk_tokens(const LmHeadLoss& l) {
  const int64_t most = std::max<int64_t>(64, (int64_t{64} << 20) / std::max<int64_t>(1, l.weight.size(0)));
  return std::max<int64_t>(1, std::min({l.h.size(0), most, int64_t{8192}}));
}

struct Pieces {
  Tensor logits, dlogits, loss_rows, gemm;
};
Pieces take_workspace(const LmHeadLoss& l, int64_t chunk) {
  const Device device = l.h.device();
  if (device.is_meta()) return {};
  Workspace w(l.workspace);
  Pieces p;
  const int64_t vocabulary = l.weight.size(0);
  p.logits = Tensor(w.take<float>(chunk * vocabulary), DType::f32, device, {chunk, vocabulary});
  p.dlogits = p.logits;
  if (l.h.dtype() == DType::bf16) p.dlogits = Tensor(w.take<uint16_t>(chunk * vocabulary), DType::bf16, device, {chunk, vocabulary});
  p.loss_rows = Tensor(w.take<double>(chunk), DType::f64, device, {chunk});
  if (device.is_cuda()) p.gemm = Tensor(w.take<char>(kGemmWorkspaceBytes), DType::u8, device, {kGemmWorkspaceBytes});
  return p;
}

}  // namespace

void cross_entropy(const CrossEntropy& c) {
  HYSCALE_DISPATCH("cross_entropy", c.logits.device(), cross_entropy_ref(c), cross_entropy_cuda(c));
}

void lm_head_loss(const LmHeadLoss& l) {
  const Range range("lm_head_loss");
  check_shape(l.weight, "weight", {-1, l.h.size(1)});
  check_tensor(l.labels, "labels", DType::i32, {l.h.size(0)});
  check_tensor(l.loss_sum, "loss_sum", DType::f64, {1});
  if (l.dh.defined()) check_shape(l.dh, "dh", l.h.shape());
  if (l.dweight.defined()) check_tensor(l.dweight, "dweight", DType::f32, l.weight.shape());
  if (l.h.device().is_meta()) return;
  const int64_t chunk = chunk_tokens(l), tokens = l.h.size(0);
  const Pieces p = take_workspace(l, chunk);
  const bool backward = l.dh.defined() || l.dweight.defined();
  for (int64_t first = 0; first < tokens; first += chunk) {
    const int64_t last = std::min(tokens, first + chunk), n = last - first;
    const Tensor h = l.h.slice(0, first, last), logits = p.logits.slice(0, 0, n), dlogits = p.dlogits.slice(0, 0, n);
    gemm({.a = h, .b = l.weight, .c = logits, .transpose_b = true, .workspace = p.gemm, .stream = l.stream});
    cross_entropy({.logits = logits, .labels = l.labels.slice(0, first, last), .grad_scale = l.grad_scale,
                   .dlogits = backward ? dlogits : Tensor(), .loss_rows = p.loss_rows, .loss_sum = l.loss_sum, .stream = l.stream});
    if (l.dh.defined()) gemm({.a = dlogits, .b = l.weight, .c = l.dh.slice(0, first, last), .workspace = p.gemm, .stream = l.stream});
    if (l.dweight.defined())
      gemm({.a = dlogits, .b = h, .c = l.dweight, .transpose_a = true, .beta = 1, .workspace = p.gemm, .stream = l.stream});
  }
}

size_t lm_head_loss_workspace_bytes(const LmHeadLoss& l) {
  const size_t chunk = static_cast<size_t>(chunk_tokens(l)), logits = chunk * static_cast<size_t>(l.weight.size(0));
  return aligned_bytes(logits * sizeof(float)) + (l.h.dtype() == DType::bf16 ? aligned_bytes(logits * 2) : 0) +
         aligned_bytes(chunk * sizeof(double)) + (l.h.dtype() == DType::bf16 || l.h.device().is_cuda() ? kGemmWorkspaceBytes : 0);
}

}  // namespace hyscale
