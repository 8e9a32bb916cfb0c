#include "kernels/elementwise/elementwise.h"

#include <algorithm>

#include "kernels/common/op.h"

namespace hyscale {

void add_cuda(const Tensor& y, const Tensor& a, const Tensor& b, Stream);
void scale_cuda(const Tensor& x, float factor, Stream);
void cast_cuda(const Tensor& to, const Tensor& from, Stream);
void shift_labels_cuda(const Tensor& next, const Tensor& labels, Stream);

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
  const bool matrix = to.rank() == 2;
  const int64_t rows = matrix ? to.size(0) : 1, columns = matrix ? to.size(1) : to.elements();
  const int64_t to_step = matrix ? to.stride(0) : 0, from_step = matrix ? from.stride(0) : 0;
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const float value = read(from, r * from_step + c);
      if (to.dtype() == DType::f32)
        to.data<float>()[r * to_step + c] = value;
      else
        to.data<uint16_t>()[r * to_step + c] = float_to_bf16(value);
    }
}

void shift_labels_ref(const Tensor& next, const Tensor& labels) {
  const int64_t n = labels.size(0);
  const int32_t* l = labels.i32();
  for (int64_t t = 0; t < n; ++t) next.i32()[t] = l[t] < 0 || t + 1 == n ? -1 : l[t + 1];
}

void check_float(const Tensor& t) {
  HYSCALE_CHECK(t.dtype() == DType::f32 || t.dtype() == DType::bf16, "tensor is ", to_string(t));
}

}  // namespace

void add(const Tensor& y, const Tensor& a, const Tensor& b, Stream stream) {
  for (const Tensor* t : {&a, &b}) check_tensor(*t, "operand of add", y.dtype(), y.shape());
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
  HYSCALE_CHECK(to.rank() == 2 || (to.is_contiguous() && from.is_contiguous()), "cast of ", to_string(from));
  (void)stream;
  HYSCALE_DISPATCH("cast", to.device(), cast_ref(to, from), cast_cuda(to, from, stream));
}

void shift_labels(const Tensor& next, const Tensor& labels, Stream stream) {
  check_tensor(next, "next", DType::i32, {-1});
  check_tensor(labels, "labels", DType::i32, next.shape());
  (void)stream;
  HYSCALE_DISPATCH("shift_labels", next.device(), shift_labels_ref(next, labels), shift_labels_cuda(next, labels, stream));
}

}  // namespace hyscale
