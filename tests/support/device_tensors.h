// Owned device tensors for tests of CUDA ops, and inputs that bf16 holds exactly.
#pragma once
#include <algorithm>
#include <vector>

#include "tests/support/tensors.h"

namespace hyscale::test {

inline constexpr Device kCuda{DeviceType::cuda, 0};

inline HostTensor rounded(HostTensor x) {
  for (int64_t i = 0; i < x.size(); ++i) x[i] = bf16_to_float(float_to_bf16(x[i]));
  return x;
}

// A device copy of a host tensor; f32 hosts become bf16 where asked. Memory is first filled with NaN.
class DeviceTensor {
 public:
  DeviceTensor(DType dtype, Shape shape)
      : buffer_(kCuda, std::max<size_t>(1, static_cast<size_t>(shape.elements()) * dtype_bytes(dtype)), "test"),
        tensor_(buffer_.data(), dtype, kCuda, shape) {
    fill_bytes(tensor_, 0xFF, {});
  }
  DeviceTensor(const HostTensor& host, DType dtype) : DeviceTensor(dtype, host.t().shape()) {
    if (dtype == host.t().dtype()) {
      copy_bytes(tensor_.raw(), kCuda, host.t().raw(), {}, tensor_.bytes(), {});
      return;
    }
    std::vector<uint16_t> narrow(static_cast<size_t>(host.size()));
    for (size_t i = 0; i < narrow.size(); ++i) narrow[i] = float_to_bf16(host[static_cast<int64_t>(i)]);
    copy_bytes(tensor_.raw(), kCuda, narrow.data(), {}, tensor_.bytes(), {});
    synchronize(kCuda, {});
  }
  operator const Tensor&() const { return tensor_; }
  HostTensor download() const {
    HostTensor host(tensor_.dtype() == DType::bf16 ? DType::f32 : tensor_.dtype(), tensor_.shape());
    std::vector<uint16_t> narrow(static_cast<size_t>(tensor_.elements()));
    copy_bytes(tensor_.dtype() == DType::bf16 ? static_cast<void*>(narrow.data()) : host.t().raw(), {}, tensor_.raw(), kCuda, tensor_.bytes(), {});
    synchronize(kCuda, {});
    for (size_t i = 0; tensor_.dtype() == DType::bf16 && i < narrow.size(); ++i) host[static_cast<int64_t>(i)] = bf16_to_float(narrow[i]);
    return host;
  }

 private:
  Buffer buffer_;
  Tensor tensor_;
};

}  // namespace hyscale::test
