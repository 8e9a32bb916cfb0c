#include "kernels/gated_residual/gated_residual.h"

#include "kernels/common/host_device.h"
#include "kernels/common/op.h"

namespace hyscale {

void streams_read_cuda(const StreamsRead&);
void streams_read_backward_cuda(const StreamsReadBackward&);
void streams_write_cuda(const StreamsWrite&);
void streams_write_backward_cuda(const StreamsWriteBackward&);

namespace {

struct Sizes {
  int64_t tokens, streams, columns;
  explicit Sizes(const Tensor& x) : tokens(x.size(0)), streams(x.size(1)), columns(x.size(2)) {}
};

void streams_read_ref(const StreamsRead& r) {
  const Sizes n(r.normed);
  const float share = 1.0f / static_cast<float>(n.streams);
#pragma omp parallel for
  for (int64_t t = 0; t < n.tokens; ++t) {
    const float *normed = r.normed.f32() + t * n.streams * n.columns, *gates = r.gates.f32() + t * n.streams * n.columns;
    for (int64_t c = 0; c < n.columns; ++c) {
      float sum = 0;
      for (int64_t i = 0; i < n.streams; ++i) sum += sigmoid(gates[i * n.columns + c]) * normed[i * n.columns + c];
      r.x.f32()[t * n.columns + c] = share * sum;
    }
  }
}

void streams_read_backward_ref(const StreamsReadBackward& r) {
  const Sizes n(r.normed);
  const float share = 1.0f / static_cast<float>(n.streams);
#pragma omp parallel for
  for (int64_t row = 0; row < n.tokens * n.streams; ++row) {
    const float* dx = r.dx.f32() + row / n.streams * n.columns;
    for (int64_t c = 0; c < n.columns; ++c) {
      const int64_t at = row * n.columns + c;
      const float s = sigmoid(r.gates.f32()[at]), d = share * dx[c];
      r.dgates.f32()[at] = d * r.normed.f32()[at] * s * (1 - s);
      r.dnormed.f32()[at] = d * s;
    }
  }
}

void streams_write_ref(const StreamsWrite& w) {
  const Sizes n(w.out);
#pragma omp parallel for
  for (int64_t row = 0; row < n.tokens * n.streams; ++row) {
    const float s = w.logits.defined() ? 2 * sigmoid(w.logits.f32()[row]) : 1;
    const float* y = w.y.f32() + row / n.streams * n.columns;
    float* out = w.out.f32() + row * n.columns;
    for (int64_t c = 0; c < n.columns; ++c) out[c] = (w.streams.defined() ? w.streams.f32()[row * n.columns + c] : 0) + s * y[c];
  }
}

void streams_write_backward_ref(const StreamsWriteBackward& w) {
  const Sizes n(w.dout);
#pragma omp parallel for
  for (int64_t t = 0; t < n.tokens; ++t) {
    float* dy = w.dy.f32() + t * n.columns;
    for (int64_t i = 0; i < n.streams; ++i) {
      const float s = w.logits.defined() ? 2 * sigmoid(w.logits.f32()[t * n.streams + i]) : 1;
      const float* dout = w.dout.f32() + (t * n.streams + i) * n.columns;
      for (int64_t c = 0; c < n.columns; ++c) dy[c] = (i == 0 ? 0 : dy[c]) + s * dout[c];
      if (!w.logits.defined()) continue;
      double dot = 0;
      for (int64_t c = 0; c < n.columns; ++c) dot += double{dout[c]} * w.y.f32()[t * n.columns + c];
      w.dlogits.f32()[t * n.streams + i] = static_cast<float>(dot) * s * (1 - s / 2);
    }
  }
}

void check_streams(const Tensor& streams, const char* what, const Tensor& row) {
  HYSCALE_CHECK(streams.rank() == 3 && streams.is_contiguous() && row.is_contiguous(), what, " ", to_string(streams), ", one row of them ", to_string(row));
  check_shape(row, "row", {streams.size(0), streams.size(2)});
}

}  // namespace

void streams_read(const StreamsRead& r) {
  check_streams(r.normed, "normed", r.x);
  check_shape(r.gates, "gates", r.normed.shape());
  HYSCALE_DISPATCH("streams_read", r.x.device(), streams_read_ref(r), streams_read_cuda(r));
}

void streams_read_backward(const StreamsReadBackward& r) {
  check_streams(r.normed, "normed", r.dx);
  check_shape(r.gates, "gates", r.normed.shape());
  check_shape(r.dnormed, "dnormed", r.normed.shape());
  check_shape(r.dgates, "dgates", r.normed.shape());
  HYSCALE_DISPATCH("streams_read_backward", r.dx.device(), streams_read_backward_ref(r), streams_read_backward_cuda(r));
}

void streams_write(const StreamsWrite& w) {
  check_streams(w.out, "out", w.y);
  if (w.streams.defined()) check_shape(w.streams, "streams", w.out.shape());
  if (w.logits.defined()) check_tensor(w.logits, "logits", DType::f32, {w.out.size(0), w.out.size(1)});
  HYSCALE_DISPATCH("streams_write", w.y.device(), streams_write_ref(w), streams_write_cuda(w));
}

void streams_write_backward(const StreamsWriteBackward& w) {
  check_streams(w.dout, "dout", w.dy);
  HYSCALE_CHECK(w.logits.defined() == w.dlogits.defined(), "logits and dlogits come together");
  if (w.logits.defined()) {
    check_shape(w.y, "y", w.dy.shape());
    check_tensor(w.logits, "logits", DType::f32, {w.dout.size(0), w.dout.size(1)});
    check_tensor(w.dlogits, "dlogits", DType::f32, w.logits.shape());
  }
  HYSCALE_DISPATCH("streams_write_backward", w.dy.device(), streams_write_backward_ref(w), streams_write_backward_cuda(w));
}

}  // namespace hyscale
