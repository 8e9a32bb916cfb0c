// Tensor: a non-owning strided view (address, dtype, device, shape). Copying one copies no data.
// Sizes and strides are int64 and count elements. At most kMaxDims dimensions.
//
// The device `meta` has shapes but no storage: ops accept such tensors, check shapes and do nothing, so a whole
// training step can be walked to count bytes (see config Plan).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "core/error.h"

namespace hyscale {

enum class DType : uint8_t { f32, bf16, f8e4m3, f64, i32, i64, u8, u16 };
size_t dtype_bytes(DType);
const char* dtype_name(DType);

enum class DeviceType : uint8_t { cpu, cuda, meta };
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_cuda() const { return type == DeviceType::cuda; }
  bool is_meta() const { return type == DeviceType::meta; }
};
std::string to_string(Device);  // "cpu", "cuda:0", "meta"

// An ordered queue of work on a device: a cudaStream_t, or nothing on the CPU.
struct Stream {
  void* handle = nullptr;
};

inline constexpr int kMaxDims = 5;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims);
  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i < 0 ? i + rank_ : i]; }
  int64_t& operator[](int i) { return dims_[i < 0 ? i + rank_ : i]; }
  int64_t elements() const;  // 1 for rank 0
  bool operator==(const Shape&) const = default;
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }

 private:
  std::array<int64_t, kMaxDims> dims_{};
  int rank_ = 0;
};
std::string to_string(const Shape&);  // "[2, 3]"

class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, Device device, Shape shape);  // contiguous
  Tensor(void* data, DType dtype, Device device, Shape shape, Shape strides);

  // A default-constructed tensor is "absent": optional operands of ops are passed so.
  bool defined() const { return defined_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t size(int dim) const { return shape_[dim]; }
  int64_t stride(int dim) const { return strides_[dim]; }
  int64_t elements() const { return shape_.elements(); }
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype_bytes(dtype_); }
  bool is_contiguous() const;

  void* raw() const { return data_; }
  template <typename T>
  T* data() const {
    return static_cast<T*>(data_);
  }
  float* f32() const {
    HYSCALE_CHECK(dtype_ == DType::f32, "tensor is ", dtype_name(dtype_));
    return data<float>();
  }
  int32_t* i32() const {
    HYSCALE_CHECK(dtype_ == DType::i32, "tensor is ", dtype_name(dtype_));
    return data<int32_t>();
  }

  // Views. slice keeps strides; view needs a contiguous tensor and may hold one -1.
  Tensor slice(int dim, int64_t begin, int64_t end) const;
  Tensor view(Shape shape) const;
  Tensor as_matrix() const;  // [T, ...] -> [T, all the rest], also for T = 0
  Tensor select(int dim, int64_t index) const;      // drops the dimension
  Tensor split_last(int64_t outer, int64_t inner) const;  // [..., outer*inner] -> [..., outer, inner]; the last dim must be dense

 private:
  void* data_ = nullptr;
  bool defined_ = false;
  DType dtype_ = DType::f32;
  Device device_;
  Shape shape_, strides_;
};
std::string to_string(const Tensor&);  // "f32[2, 3] on cpu"

// Throws InternalError naming `what` unless the tensor has this dtype and shape (-1 matches any size).
void check_tensor(const Tensor&, const char* what, DType, Shape);
void check_shape(const Tensor&, const char* what, Shape);

// bf16 on the host: round to nearest even; NaN stays NaN.
uint16_t float_to_bf16(float);
float bf16_to_float(uint16_t);
// e4m3 (OCP 8-bit floating point) on the host: up to 448, no infinities. Rounds to nearest even; what is larger becomes 448, NaN stays NaN.
uint8_t float_to_e4m3(float);
float e4m3_to_float(uint8_t);

}  // namespace hyscale
