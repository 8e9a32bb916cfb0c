#include "core/tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace hyscale {

size_t dtype_bytes(DType t) {
  switch (t) {
    case DType::f32: case DType::i32: return 4;
    case DType::bf16: case DType::u16: return 2;
    case DType::f64: case DType::i64: return 8;
    case DType::f8e4m3: case DType::u8: return 1;
  }
  HYSCALE_CHECK(false, "dtype ", static_cast<int>(t));
}

const char* dtype_name(DType t) {
  switch (t) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f8e4m3: return "f8e4m3";
    case DType::f64: return "f64";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
    case DType::u16: return "u16";
  }
  return "?";
}

std::string to_string(Device d) {
  switch (d.type) {
    case DeviceType::cpu: return "cpu";
    case DeviceType::cuda: return concat("cuda:", d.index);
    case DeviceType::meta: return "meta";
  }
  return "?";
}

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  HYSCALE_CHECK(dims.size() <= kMaxDims, dims.size(), " dimensions, at most ", kMaxDims);
  for (int i = 0; i < rank_; ++i) dims_[i] = dims[i];
}

int64_t Shape::elements() const {
  int64_t n = 1;
  for (int64_t d : dims()) n *= d;
  return n;
}

std::string to_string(const Shape& s) {
  std::string out = "[";
  for (int i = 0; i < s.rank(); ++i) out += (i ? ", " : "") + std::to_string(s[i]);
  return out + "]";
}

static Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

Tensor::Tensor(void* data, DType dtype, Device device, Shape shape)
    : Tensor(data, dtype, device, shape, contiguous_strides(shape)) {}

Tensor::Tensor(void* data, DType dtype, Device device, Shape shape, Shape strides)
    : data_(data), defined_(true), dtype_(dtype), device_(device), shape_(shape), strides_(strides) {
  HYSCALE_CHECK(shape.rank() == strides.rank(), "shape ", to_string(shape), ", strides ", to_string(strides));
  for (int64_t d : shape.dims()) HYSCALE_CHECK(d >= 0, "shape ", to_string(shape));
}

bool Tensor::is_contiguous() const {
  if (elements() == 0) return true;
  int64_t step = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != step) return false;
    step *= shape_[i];
  }
  return true;
}

static void* offset(void* data, int64_t elements, DType dtype) {
  return data ? static_cast<char*>(data) + elements * static_cast<int64_t>(dtype_bytes(dtype)) : nullptr;
}

Tensor Tensor::slice(int dim, int64_t begin, int64_t end) const {
  const int d = dim < 0 ? dim + rank() : dim;
  HYSCALE_CHECK(d >= 0 && d < rank() && 0 <= begin && begin <= end && end <= shape_[d], "slice ", begin, ":", end,
                " of dimension ", dim, " of ", to_string(shape_));
  Tensor t = *this;
  t.shape_[d] = end - begin;
  t.data_ = offset(data_, begin * strides_[d], dtype_);
  return t;
}

Tensor Tensor::select(int dim, int64_t index) const {
  const int d = dim < 0 ? dim + rank() : dim;
  const Tensor one = slice(d, index, index + 1);
  std::array<int64_t, kMaxDims> shape{}, strides{};
  size_t n = 0;
  for (int i = 0; i < rank(); ++i) {
    if (i == d) continue;
    shape[n] = shape_[i];
    strides[n++] = strides_[i];
  }
  return Tensor(one.data_, dtype_, device_, Shape(std::span<const int64_t>(shape.data(), n)),
                Shape(std::span<const int64_t>(strides.data(), n)));
}

Tensor Tensor::view(Shape shape) const {
  HYSCALE_CHECK(is_contiguous(), "view of a strided tensor ", to_string(*this));
  int wild = -1;
  int64_t known = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == -1) {
      HYSCALE_CHECK(wild < 0, "two unknown dimensions in ", to_string(shape));
      wild = i;
    } else {
      known *= shape[i];
    }
  }
  if (wild >= 0) shape[wild] = known ? elements() / known : 0;
  HYSCALE_CHECK(shape.elements() == elements(), "view ", to_string(shape), " of ", to_string(*this));
  return Tensor(data_, dtype_, device_, shape);
}

Tensor Tensor::as_matrix() const {
  int64_t columns = 1;
  for (int i = 1; i < rank(); ++i) columns *= size(i);
  return view({size(0), columns});
}

Tensor Tensor::split_last(int64_t outer, int64_t inner) const {
  HYSCALE_CHECK(rank() >= 1 && rank() < kMaxDims && shape_[-1] == outer * inner && (strides_[-1] == 1 || shape_[-1] <= 1),
                "split of ", to_string(*this), " into ", outer, " x ", inner);
  std::array<int64_t, kMaxDims> shape{}, strides{};
  const int n = rank();
  for (int i = 0; i < n - 1; ++i) {
    shape[i] = shape_[i];
    strides[i] = strides_[i];
  }
  shape[n - 1] = outer;
  strides[n - 1] = inner;
  shape[n] = inner;
  strides[n] = 1;
  return Tensor(data_, dtype_, device_, Shape(std::span<const int64_t>(shape.data(), n + 1)),
                Shape(std::span<const int64_t>(strides.data(), n + 1)));
}

std::string to_string(const Tensor& t) {
  if (!t.defined()) return "(absent)";
  return concat(dtype_name(t.dtype()), to_string(t.shape()), " on ", to_string(t.device()));
}

void check_shape(const Tensor& t, const char* what, Shape want) {
  bool ok = t.defined() && t.rank() == want.rank();
  for (int i = 0; ok && i < want.rank(); ++i) ok = want[i] == -1 || want[i] == t.size(i);
  HYSCALE_CHECK(ok, what, " is ", to_string(t), ", expected shape ", to_string(want));
}

void check_tensor(const Tensor& t, const char* what, DType dtype, Shape want) {
  check_shape(t, what, want);
  HYSCALE_CHECK(t.dtype() == dtype, what, " is ", to_string(t), ", expected dtype ", dtype_name(dtype));
}

uint16_t float_to_bf16(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float bf16_to_float(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

uint8_t float_to_e4m3(float f) {
  const uint8_t sign = std::signbit(f) ? 0x80 : 0;
  if (std::isnan(f)) return sign | 0x7f;
  const float magnitude = std::min(std::abs(f), 448.0f);
  const int exponent = std::max(std::ilogb(magnitude), -6);  // below 2^-6 the steps stay 2^-9
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));  // 8 to 16, or fewer below 2^-6
  return static_cast<uint8_t>(sign | ((exponent + 6) * 8 + steps));                         // 16 carries into the exponent
}

float e4m3_to_float(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9) : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}

}  // namespace hyscale
