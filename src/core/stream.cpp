#include "core/stream.h"

#ifdef HYSCALE_HAS_CUDA
#include <cuda_runtime.h>
#endif

namespace hyscale {

#ifdef HYSCALE_HAS_CUDA
namespace {
void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw InternalError(concat(call, ": ", cudaGetErrorString(status)));
}
cudaStream_t native(Stream s) { return static_cast<cudaStream_t>(s.handle); }
cudaEvent_t native(void* event) { return static_cast<cudaEvent_t>(event); }
}  // namespace

OwnedStream::OwnedStream(Device device) : device_(device) {
  if (!device_.is_cuda()) return;
  cudaStream_t s = nullptr;
  check_cuda(cudaSetDevice(device_.index), "cudaSetDevice");
  check_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cudaStreamCreate");
  stream_.handle = s;
}
OwnedStream::~OwnedStream() {
  if (stream_.handle) cudaStreamDestroy(native(stream_));
}

Event::Event(Device device) : device_(device) {
  if (!device_.is_cuda()) return;
  cudaEvent_t e = nullptr;
  check_cuda(cudaSetDevice(device_.index), "cudaSetDevice");
  check_cuda(cudaEventCreate(&e), "cudaEventCreate");
  handle_ = e;
}
Event::~Event() {
  if (handle_) cudaEventDestroy(native(handle_));
}
void Event::record(Stream stream) {
  recorded_ = true;
  if (handle_) check_cuda(cudaEventRecord(native(handle_), native(stream)), "cudaEventRecord");
  else time_ = std::chrono::steady_clock::now();
}
void Event::hold(Stream stream) const {
  if (handle_ && recorded_) check_cuda(cudaStreamWaitEvent(native(stream), native(handle_)), "cudaStreamWaitEvent");
}
void Event::synchronize() const {
  if (handle_ && recorded_) check_cuda(cudaEventSynchronize(native(handle_)), "cudaEventSynchronize");
}
double Event::milliseconds_since(const Event& start) const {
  HYSCALE_CHECK(recorded_ && start.recorded_, "time between events that were not recorded");
  if (handle_) {
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, native(start.handle_), native(handle_)), "cudaEventElapsedTime");
    return ms;
  }
  return std::chrono::duration<double, std::milli>(time_ - start.time_).count();
}
#else
OwnedStream::OwnedStream(Device device) : device_(device) {}
OwnedStream::~OwnedStream() = default;
Event::Event(Device device) : device_(device) {}
Event::~Event() = default;
void Event::record(Stream) {
  recorded_ = true;
  time_ = std::chrono::steady_clock::now();
}
void Event::hold(Stream) const {}
void Event::synchronize() const {}
double Event::milliseconds_since(const Event& start) const {
  HYSCALE_CHECK(recorded_ && start.recorded_, "time between events that were not recorded");
  return std::chrono::duration<double, std::milli>(time_ - start.time_).count();
}
#endif

}  // namespace hyscale
