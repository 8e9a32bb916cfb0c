#include "kernels/elementwise/elementwise.h"

#include <algorithm>

#include "kernels/common/op.h"
#include "kernels/common/residual_types.h"

namespace hyscale {

Tensor as_rank3(const Tensor& t) {
  if (t.rank() == 3) return t;
  if (t.rank() == 2) return Tensor(t.raw(), t.dtype(), t.device(), {1, t.size(0), t.size(1)}, {0, t.stride(0), t.stride(1)});
  HYSCALE_CHECK(t.is_contiguous(), to_string(t), " is strided");
  return Tensor(t.raw(), t.dtype(), t.device(), {1, 1, t.elements()});
}

void add_cuda(const Tensor& y, const Tensor& a, const Tensor& b, Stream);
void scale_cuda(const Tensor& x, float factor, Stream);
void cast_cuda(const Tensor& to, const Tensor& from, Stream);

namespace {

void add_ref(const Tensor& y, const Tensor& a, const Tensor& b) {
  float *py = y.f32(), *pa = a.f32(), *pb = b.f32();
#pragma omp parallel for simd
  for (int64_t i = 0; i < y.elements(); ++i) py[i] = pa[i] + pb[i];
}

void scale_ref(const Tensor& x, float factor) {
  float* p = x.f32();
#pragma omp parallel for simd
  for (int64_t i = 0; i < x.elements(); ++i) p[i] *= factor;
}

float read(const Tensor& t, int64_t i) { return t.dtype() == DType::f32 ? t.data<float>()[i] : bf16_to_float(t.data<uint16_t>()[i]); }

void cast_ref(const Tensor& to, const Tensor& from) {
  const Tensor y = as_rank3(to), x = as_rank3(from);
#pragma omp parallel for collapse(2)
  for (int64_t i = 0; i < y.size(0); ++i)
    for (int64_t j = 0; j < y.size(1); ++j)
      for (int64_t c = 0; c < y.size(2); ++c) {
        const float value = read(x, i * x.stride(0) + j * x.stride(1) + c);
        const int64_t at = i * y.stride(0) + j * y.stride(1) + c;
        if (y.dtype() == DType::f32)
          y.data<float>()[at] = value;
        else
          y.data<uint16_t>()[at] = float_to_bf16(value);
      }
}

void check_float(const Tensor& t) {
  HYSCALE_CHECK(t.dtype() == DType::f32 || t.dtype() == DType::bf16, "tensor is ", to_string(t));
}

}  // namespace

void add(const Tensor& y, const Tensor& a, const Tensor& b, Stream stream) {
  check_tensor(a, "operand of add", y.dtype(), y.shape());
  check_shape(b, "operand of add", y.shape());
  check_residual_types("add", y, b);
  HYSCALE_CHECK(y.is_contiguous() && a.is_contiguous() && b.is_contiguous(), "operands of add are contiguous");
  (void)stream;
  HYSCALE_DISPATCH("add", y.device(), add_ref(y, a, b), add_cuda(y, a, b, stream));
}

void scale(const Tensor& x, float factor, Stream stream) {
  check_float(x);
  HYSCALE_CHECK(x.is_contiguous(), "scale of ", to_string(x));
  (void)stream;
  HYSCALE_DISPATCH("scale", x.device(), scale_ref(x, factor), scale_cuda(x, factor, stream));
}

void cast(const Tensor& to, const Tensor& from, Stream stream) {
  check_float(to);
  check_float(from);
  check_shape(from, "from", to.shape());
  HYSCALE_CHECK(as_rank3(to).stride(2) == 1 && as_rank3(from).stride(2) == 1, "cast of ", to_string(from), " to ", to_string(to));
  (void)stream;
  HYSCALE_DISPATCH("cast", to.device(), cast_ref(to, from), cast_cuda(to, from, stream));
}

}  // namespace hyscale
