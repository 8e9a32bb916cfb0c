// Memory of a device: Buffer owns it; copies and fills go through here. The only place that calls cudaMalloc.
#pragma once
#include <string>

#include "core/tensor.h"

namespace hyscale {

bool built_with_cuda();
int cuda_device_count();  // 0 without CUDA or without a usable driver
std::string device_name(Device);  // "NVIDIA H200", "cpu", "meta"
std::string cuda_device_identity(Device);  // its PCI address, the same whatever part of the host's devices a process sees
size_t cuda_memory_bytes();  // of device 0; 0 where there is none

// Owns `bytes` bytes, aligned to 256. On `meta` it owns nothing and data() is null.
// Throws UserError when the device has too little memory or its limit is passed; the message names the request, `purpose`, what
// the device holds, the largest holders there and the memory plan.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device, size_t bytes, std::string purpose);
  ~Buffer();
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  Device device_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Host memory that CUDA can copy to and from without staging of its own; plain memory where no CUDA device is usable.
// It only grows, and growing loses what it held.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  void reserve(size_t bytes);
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void release();
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool pinned_ = false;
};

// Bytes now held by Buffers of this device, and the most held at once since the process began (or reset_peak).
// Meta buffers count too: that is how a plan measures.
size_t allocated_bytes(Device);
size_t peak_bytes(Device);
void reset_peak(Device);

// From now on Buffers of this device may hold at most so many bytes together; 0: what the device has.
void limit_memory(Device, size_t bytes);
// What the run was planned to need, one line, for messages about memory that ran out.
void set_memory_plan(std::string);

// Any of cpu and cuda on either side; asynchronous on a cuda stream. No-ops when either side is meta.
void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes, Stream);
void copy(const Tensor& to, const Tensor& from, Stream);  // equal shape and dtype, both contiguous
void zero(const Tensor&, Stream);                         // contiguous
void fill_bytes(const Tensor&, uint8_t value, Stream);    // contiguous; 0xFF makes NaN of every float format
void synchronize(Device, Stream);

}  // namespace hyscale
