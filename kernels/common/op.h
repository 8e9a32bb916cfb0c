// What every op shares. An op is a free function over a params struct of Tensor views. It checks its preconditions with
// messages that name the values, allocates nothing, never synchronises and reads no environment. Scratch memory is
// passed in as `workspace` (u8[n]) of at least <op>_workspace_bytes(params), which needs no GPU.
//
// Dispatch is one switch on the device in the op's own file. On `meta` an op checks shapes and returns.
//   CPU:  f32 storage, f64 where sums are long; the truth that kernels are held against.
//   CUDA: bf16 storage with f32 accumulation, unless the header says otherwise.
#pragma once
#include "core/error.h"
#include "core/range.h"
#include "core/tensor.h"

namespace hyscale {

// Throws InternalError for a device on which `op` has no implementation in this build.
[[noreturn]] void unsupported_device(const char* op, Device);

// A typed piece of an op's workspace, cut off its front; 256-byte aligned. Throws when the rest is too small.
class Workspace {
 public:
  explicit Workspace(const Tensor& bytes) : next_(bytes.data<char>()), left_(bytes.defined() ? bytes.bytes() : 0) {}
  template <typename T>
  T* take(int64_t count) {
    return static_cast<T*>(take_bytes(static_cast<size_t>(count) * sizeof(T)));
  }

 private:
  void* take_bytes(size_t bytes);
  char* next_;
  size_t left_;
};

// The one switch of an op, inside a range of its name. `cuda_call` is compiled in builds with CUDA only; on `meta` checks have been made and nothing is done.
#ifdef HYSCALE_HAS_CUDA
#define HYSCALE_DISPATCH(op, device, cpu_call, cuda_call) \
  const Range hyscale_range(op);                          \
  switch ((device).type) {                                \
    case DeviceType::cpu: cpu_call; return;               \
    case DeviceType::cuda: cuda_call; return;             \
    case DeviceType::meta: return;                        \
  }
#else
#define HYSCALE_DISPATCH(op, device, cpu_call, cuda_call)          \
  const Range hyscale_range(op);                                   \
  switch ((device).type) {                                         \
    case DeviceType::cpu: cpu_call; return;                        \
    case DeviceType::cuda: unsupported_device(op, device);         \
    case DeviceType::meta: return;                                 \
  }
#endif

inline constexpr size_t aligned_bytes(size_t bytes) { return (bytes + 255) / 256 * 256; }
// Of sort_by_key (pair_sort.cuh): a copy of keys and values, and the radix sort's counters.
inline constexpr size_t pair_sort_bytes(int64_t pairs) { return aligned_bytes((size_t{2} << 20) + 9 * static_cast<size_t>(pairs)); }

}  // namespace hyscale
