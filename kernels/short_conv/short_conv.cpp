#include "kernels/short_conv/short_conv.h"

#include <cmath>

#include "kernels/common/op.h"
#include "kernels/common/rows.h"

namespace hyscale {

void short_conv_cuda(const ShortConv&);
void short_conv_backward_cuda(const ShortConvBackward&);
size_t short_conv_backward_cuda_workspace_bytes(const ShortConvBackward&);

namespace {

// u[t], with the taps that reach into the token's own document.
template <typename Conv>
float convolve(const Conv& c, int64_t t, int64_t channel) {
  const int64_t channels = c.x.size(1), taps = c.weight.size(1), position = c.positions.i32()[t];
  const float* w = c.weight.f32() + channel * taps;
  float u = 0;
  for (int64_t j = 0; j < taps; ++j) {
    const int64_t back = (taps - 1 - j) * c.dilation;
    if (back <= position) u += w[j] * c.x.f32()[(t - back) * channels + channel];
  }
  return u;
}

void short_conv_ref(const ShortConv& c) {
  const int64_t tokens = c.x.size(0), channels = c.x.size(1);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < channels; ++i) {
      const float u = convolve(c, t, i);
      c.y.f32()[t * channels + i] = u / (1 + std::exp(-u));
    }
}

void short_conv_backward_ref(const ShortConvBackward& c) {
  const int64_t tokens = c.x.size(0), channels = c.x.size(1), taps = c.weight.size(1);
  const int32_t* position = c.positions.i32();
  Workspace workspace(c.workspace);
  float* du = workspace.take<float>(tokens * channels);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < channels; ++i) {
      const float u = convolve(c, t, i), s = 1 / (1 + std::exp(-u));
      du[t * channels + i] = c.dy.f32()[t * channels + i] * s * (1 + u * (1 - s));
    }
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < channels; ++i) {
      float sum = 0;
      for (int64_t j = 0; j < taps; ++j) {
        const int64_t ahead = (taps - 1 - j) * c.dilation;
        // A later token of the same document has its position further along by as much.
        if (t + ahead < tokens && position[t + ahead] >= ahead) sum += c.weight.f32()[i * taps + j] * du[(t + ahead) * channels + i];
      }
      c.dx.f32()[t * channels + i] = sum;
    }
#pragma omp parallel for
  for (int64_t i = 0; i < channels; ++i)
    for (int64_t j = 0; j < taps; ++j) {
      const int64_t back = (taps - 1 - j) * c.dilation;
      double sum = 0;
      for (int64_t t = back; t < tokens; ++t)
        if (back <= position[t]) sum += double{du[t * channels + i]} * c.x.f32()[(t - back) * channels + i];
      c.dweight.f32()[i * taps + j] += static_cast<float>(sum);
    }
}

template <typename Conv>
void check_conv(const Conv& c) {
  HYSCALE_CHECK(c.x.rank() == 2 && c.x.is_contiguous(), "x ", to_string(c.x));
  check_shape(c.weight, "weight", {c.x.size(1), -1});
  check_tensor(c.positions, "positions", DType::i32, {c.x.size(0)});
  HYSCALE_CHECK(c.weight.size(1) >= 1 && c.dilation >= 1, "weight ", to_string(c.weight), ", dilation ", c.dilation);
}

}  // namespace

void short_conv(const ShortConv& c) {
  check_conv(c);
  check_shape(c.y, "y", c.x.shape());
  HYSCALE_DISPATCH("short_conv", c.x.device(), short_conv_ref(c), short_conv_cuda(c));
}

void short_conv_backward(const ShortConvBackward& c) {
  check_conv(c);
  check_shape(c.dy, "dy", c.x.shape());
  check_shape(c.dx, "dx", c.x.shape());
  check_tensor(c.dweight, "dweight", DType::f32, c.weight.shape());
  HYSCALE_CHECK(c.dy.is_contiguous() && c.dx.is_contiguous(), "dy and dx are contiguous");
  HYSCALE_DISPATCH("short_conv_backward", c.x.device(), short_conv_backward_ref(c), short_conv_backward_cuda(c));
}

size_t short_conv_backward_workspace_bytes(const ShortConvBackward& c) {
#ifdef HYSCALE_HAS_CUDA
  if (c.x.device().is_cuda() || c.x.dtype() != DType::f32) return short_conv_backward_cuda_workspace_bytes(c);
#endif
  return aligned_bytes(static_cast<size_t>(c.x.elements()) * sizeof(float));
}

}  // namespace hyscale
