#include "kernels/quantize_rows/quantize_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common/op.h"

namespace hyscale {

void quantize_rows_cuda(const QuantizeRows&);

namespace {

// 2^e 448 >= amax for the least such e.
float scale_of(float amax) {
  int exponent = 0;
  const float fraction = std::frexp(std::max(amax, 1e-4f), &exponent);  // in [0.5, 1); 448 is 0.875 * 2^9
  return std::ldexp(1.0f, fraction <= 0.875f ? exponent - 9 : exponent - 8);
}

void quantize_rows_ref(const QuantizeRows& r) {
  const int64_t rows = r.x.size(0), dims = r.x.size(1);
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    const float* x = r.x.f32() + i * r.x.stride(0);
    float amax = 0;
    bool finite = true;
    for (int64_t d = 0; d < dims; ++d) amax = std::max(amax, std::abs(x[d])), finite = finite && std::isfinite(x[d]);
    const float scale = finite ? scale_of(amax) : std::numeric_limits<float>::quiet_NaN();
    r.scales.f32()[i] = scale;
    for (int64_t d = 0; d < dims; ++d) r.q.data<uint8_t>()[i * dims + d] = float_to_e4m3(x[d] / scale);
  }
}

}  // namespace

void quantize_rows(const QuantizeRows& r) {
  HYSCALE_CHECK(r.x.rank() == 2 && r.x.stride(1) == 1 && r.q.is_contiguous() && r.scales.is_contiguous(), "x is ", to_string(r.x), ", q ", to_string(r.q), ", scales ", to_string(r.scales));
  check_tensor(r.q, "q", DType::f8e4m3, r.x.shape());
  check_tensor(r.scales, "scales", DType::f32, {r.x.size(0)});
  HYSCALE_DISPATCH("quantize_rows", r.x.device(), quantize_rows_ref(r), quantize_rows_cuda(r));
}

}  // namespace hyscale
