// Watchdog: a thread that ends the process when it makes no progress, so that one hanging rank (or one that waits for a
// dead peer) ends the job: the launcher takes the others down. It says on stderr which rank stands where.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>

namespace hyscale {

class Watchdog {
 public:
  // limit_seconds without entering or leaving a Range (core/range.h) are a hang; five times as many before the first call of
  // started(), which covers first allocations and connections. 0: no watch.
  Watchdog(double limit_seconds, int rank);
  ~Watchdog();
  void started();

 private:
  void watch();

  double limit_;
  int rank_;
  bool started_ = false, ends_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace hyscale
