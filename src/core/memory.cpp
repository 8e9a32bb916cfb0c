#include "core/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#ifdef HYSCALE_HAS_CUDA
#include <cuda_runtime.h>
#endif

namespace hyscale {
namespace {

struct Ledger {
  using Key = std::pair<int, int>;
  struct Entry {
    Key device;
    size_t bytes;
    std::string purpose;
  };
  std::mutex mutex;
  std::map<Key, size_t> now, peak, limit;
  std::map<const Buffer*, Entry> holders;  // keyed by owner; moved with it
  std::string plan;
};
Ledger& ledger() {
  static Ledger instance;
  return instance;
}
Ledger::Key key(Device d) { return {static_cast<int>(d.type), d.index}; }

std::string mebibytes(size_t bytes) { return concat(bytes >> 20, " MiB"); }

// Purposes that hold the most of a device, largest first.
std::string largest_holders(Ledger::Key device) {
  std::map<std::string, size_t> by_purpose;
  for (auto& [owner, entry] : ledger().holders)
    if (entry.device == device) by_purpose[entry.purpose] += entry.bytes;
  std::vector<std::pair<size_t, std::string>> all;
  for (auto& [purpose, bytes] : by_purpose) all.emplace_back(bytes, purpose);
  std::sort(all.rbegin(), all.rend());
  std::string out;
  for (size_t i = 0; i < std::min<size_t>(all.size(), 5); ++i) out += concat(i ? ", " : "", all[i].second, " ", mebibytes(all[i].first));
  return out.empty() ? "none" : out;
}

[[noreturn]] void out_of_memory(Device device, size_t bytes, const std::string& purpose) {
  const Ledger::Key at = key(device);
  const size_t limit = ledger().limit[at];
  std::string text = concat("out of memory on ", to_string(device), ": ", mebibytes(bytes), " for ", purpose, " while ", mebibytes(ledger().now[at]), " are held");
  if (limit) text += concat(" of at most ", mebibytes(limit));
  text += concat("; largest: ", largest_holders(at));
  if (!ledger().plan.empty()) text += concat("; planned: ", ledger().plan);
  throw UserError(text);
}

#ifdef HYSCALE_HAS_CUDA
void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw InternalError(concat(call, ": ", cudaGetErrorString(status)));
}
cudaStream_t native(Stream s) { return static_cast<cudaStream_t>(s.handle); }
#else
[[noreturn]] void no_cuda() {
  throw UserError("this build has no CUDA backend: configure with -DHYSCALE_CUDA=ON, or use device cpu");
}
#endif

void* allocate(Device device, size_t bytes) {
  if (device.is_cpu()) return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
#ifdef HYSCALE_HAS_CUDA
  check_cuda(cudaSetDevice(device.index), "cudaSetDevice");
  void* p = nullptr;
  const cudaError_t status = cudaMalloc(&p, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check_cuda(status, "cudaMalloc");
  return p;
#else
  no_cuda();
#endif
}

}  // namespace

bool built_with_cuda() {
#ifdef HYSCALE_HAS_CUDA
  return true;
#else
  return false;
#endif
}

int cuda_device_count() {
#ifdef HYSCALE_HAS_CUDA
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return n;
#else
  return 0;
#endif
}

std::string device_name(Device device) {
#ifdef HYSCALE_HAS_CUDA
  cudaDeviceProp properties;
  if (device.is_cuda() && cudaGetDeviceProperties(&properties, device.index) == cudaSuccess) return properties.name;
#endif
  return to_string(device);
}

std::string cuda_device_identity(Device device) {
  char address[32] = "none";
#ifdef HYSCALE_HAS_CUDA
  if (device.is_cuda()) HYSCALE_CHECK(cudaDeviceGetPCIBusId(address, sizeof address, device.index) == cudaSuccess, to_string(device));
#endif
  (void)device;
  return address;
}

size_t cuda_memory_bytes() {
  size_t total = 0;
#ifdef HYSCALE_HAS_CUDA
  size_t available = 0;
  if (cuda_device_count() > 0 && cudaMemGetInfo(&available, &total) != cudaSuccess) total = 0;
#endif
  return total;
}

Buffer::Buffer(Device device, size_t bytes, std::string purpose) : device_(device), bytes_(bytes) {
  if (bytes == 0) return;
  {
    std::lock_guard lock(ledger().mutex);
    const size_t limit = ledger().limit[key(device)], held = ledger().now[key(device)];
    if (limit && bytes > limit - std::min(limit, held)) out_of_memory(device, bytes, purpose);
  }
  if (!device.is_meta() && !(data_ = allocate(device, bytes))) {
    std::lock_guard lock(ledger().mutex);
    out_of_memory(device, bytes, purpose);
  }
  std::lock_guard lock(ledger().mutex);
  auto& now = ledger().now[key(device)];
  now += bytes;
  ledger().peak[key(device)] = std::max(ledger().peak[key(device)], now);
  ledger().holders[this] = {key(device), bytes, std::move(purpose)};
}

Buffer::~Buffer() {
  if (bytes_ == 0) return;
  {
    std::lock_guard lock(ledger().mutex);
    ledger().now[key(device_)] -= bytes_;
    ledger().holders.erase(this);
  }
  if (!data_) return;
  if (device_.is_cpu()) std::free(data_);
#ifdef HYSCALE_HAS_CUDA
  if (device_.is_cuda()) cudaFree(data_);
#endif
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  this->~Buffer();
  device_ = other.device_;
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  if (bytes_) {
    std::lock_guard lock(ledger().mutex);
    auto node = ledger().holders.extract(&other);
    node.key() = this;
    ledger().holders.insert(std::move(node));
  }
  return *this;
}

PinnedBuffer::~PinnedBuffer() { release(); }

void PinnedBuffer::release() {
#ifdef HYSCALE_HAS_CUDA
  if (pinned_) cudaFreeHost(data_);
#endif
  if (!pinned_) std::free(data_);
  data_ = nullptr;
  bytes_ = 0;
}

void PinnedBuffer::reserve(size_t bytes) {
  if (bytes <= bytes_) return;
  release();
  pinned_ = cuda_device_count() > 0;
#ifdef HYSCALE_HAS_CUDA
  if (pinned_) check_cuda(cudaMallocHost(&data_, bytes), "cudaMallocHost");
#endif
  if (!pinned_) data_ = std::malloc(bytes);
  if (!data_) throw UserError(concat("out of host memory: ", bytes >> 20, " MiB for staging"));
  bytes_ = bytes;
}

size_t allocated_bytes(Device d) {
  std::lock_guard lock(ledger().mutex);
  return ledger().now[key(d)];
}
size_t peak_bytes(Device d) {
  std::lock_guard lock(ledger().mutex);
  return ledger().peak[key(d)];
}
void reset_peak(Device d) {
  std::lock_guard lock(ledger().mutex);
  ledger().peak[key(d)] = ledger().now[key(d)];
}

void limit_memory(Device d, size_t bytes) {
  std::lock_guard lock(ledger().mutex);
  ledger().limit[key(d)] = bytes;
}
void set_memory_plan(std::string plan) {
  std::lock_guard lock(ledger().mutex);
  ledger().plan = std::move(plan);
}

void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes, Stream stream) {
  if (bytes == 0 || to_device.is_meta() || from_device.is_meta()) return;
  if (to_device.is_cpu() && from_device.is_cpu()) {
    std::memmove(to, from, bytes);
    return;
  }
#ifdef HYSCALE_HAS_CUDA
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)), "cudaMemcpyAsync");
#else
  (void)stream;
  no_cuda();
#endif
}

void copy(const Tensor& to, const Tensor& from, Stream stream) {
  HYSCALE_CHECK(to.shape() == from.shape() && to.dtype() == from.dtype(), "copy of ", to_string(from), " to ", to_string(to));
  HYSCALE_CHECK(to.is_contiguous() && from.is_contiguous(), "copy of strided tensors");
  copy_bytes(to.raw(), to.device(), from.raw(), from.device(), to.bytes(), stream);
}

void zero(const Tensor& t, Stream stream) { fill_bytes(t, 0, stream); }

void fill_bytes(const Tensor& t, uint8_t value, Stream stream) {
  HYSCALE_CHECK(t.is_contiguous(), "fill of a strided tensor");
  if (t.bytes() == 0 || t.device().is_meta()) return;
  if (t.device().is_cpu()) {
    std::memset(t.raw(), value, t.bytes());
    return;
  }
#ifdef HYSCALE_HAS_CUDA
  check_cuda(cudaMemsetAsync(t.raw(), value, t.bytes(), native(stream)), "cudaMemsetAsync");
#else
  (void)stream;
  no_cuda();
#endif
}

void synchronize(Device device, Stream stream) {
#ifdef HYSCALE_HAS_CUDA
  if (device.is_cuda()) check_cuda(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize");
#else
  (void)device;
  (void)stream;
#endif
}

}  // namespace hyscale
