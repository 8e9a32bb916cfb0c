#include "train/finish_writes.h"

#include <chrono>
#include <thread>

#include "core/range.h"

namespace hyscale {

void finish_writes(WriteQueue& queue, Communicator& hosts, double hang_seconds) {
  using Clock = std::chrono::steady_clock;
  int32_t left_before = -1;
  Clock::time_point changed = Clock::now();
  while (true) {
    const Range range("finish writes");
    int32_t left = static_cast<int32_t>(queue.pending());
    hosts.all_reduce(Tensor(&left, DType::i32, Device{}, {1}), ReduceOp::sum, {});
    if (left == 0) return;
    if (left != left_before) left_before = left, changed = Clock::now();
    const std::chrono::duration<double> still = Clock::now() - changed;
    if (hang_seconds > 0 && still.count() > hang_seconds) queue.wait();  // no rank gets on: the watchdog counts from here
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace hyscale
