#include "train/watchdog.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "comm/communicator.h"
#include "core/range.h"

namespace hyscale {

Watchdog::Watchdog(double limit_seconds, int rank) : limit_(limit_seconds), rank_(rank) {
  if (limit_ > 0) thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::started() {
  const std::lock_guard lock(mutex_);
  started_ = true;
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    wake_.wait_for(lock, std::chrono::duration<double>(std::clamp(limit_ / 10, 0.05, 5.0)));
    const double limit = started_ ? limit_ : 5 * limit_;
    const Activity a = current_activity();
    if (ends_ || a.seconds_since_change < limit) continue;
    std::fprintf(stderr, "rank %d on %s: no progress for %.0f s in: %s. The job ends (run.hang_seconds: %g).\n", rank_, host_name().c_str(), a.seconds_since_change,
                 a.where.c_str(), limit_);
    std::fflush(stderr);
    // Time for other ranks' watchdogs to say where they stand; then no destructor may wait for a peer.
    std::this_thread::sleep_for(std::chrono::seconds(2));
    std::_Exit(1);
  }
}

}  // namespace hyscale
