// Streams and events of a device. On the CPU and on meta everything has happened when a call returns, so they do nothing.
#pragma once
#include <chrono>

#include "core/tensor.h"

namespace hyscale {

// Owns a stream of the device.
class OwnedStream {
 public:
  explicit OwnedStream(Device);
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  Stream get() const { return stream_; }

 private:
  Device device_;
  Stream stream_;
};

// A point in a stream's work: others wait for it, and the time between two can be read.
class Event {
 public:
  explicit Event(Device);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream);
  // Work enqueued on the stream from now on starts after the recorded point. Nothing recorded: no wait.
  void hold(Stream) const;
  // Blocks the host until the recorded point is reached.
  void synchronize() const;
  // Milliseconds from `start` to this event; both recorded and reached. Wall-clock time on the CPU.
  double milliseconds_since(const Event& start) const;

 private:
  Device device_;
  void* handle_ = nullptr;
  bool recorded_ = false;
  std::chrono::steady_clock::time_point time_;
};

}  // namespace hyscale
