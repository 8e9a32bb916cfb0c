// Files written beside the work: what is to be written is copied when it is handed over, and a thread of its own writes.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/memory.h"

namespace hyscale {

class WriteQueue {
 public:
  // background false: push runs the work at once.
  explicit WriteQueue(bool background);
  // Waits for the work in progress; what is not begun is dropped.
  ~WriteQueue();

  // Work is done in the order it is pushed. After an error the rest is dropped.
  void push(std::function<void()> work);
  // Pieces of work that are not done. It, idle and wait throw the first error of the work.
  size_t pending();
  bool idle() { return pending() == 0; }
  void wait();

  // Host memory of at least `bytes`, that copies from the device do not stage. It serves again when its last owner is gone.
  std::shared_ptr<PinnedBuffer> buffer(size_t bytes);

 private:
  void run();
  void throw_error();

  bool background_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false, ends_ = false;
  std::exception_ptr error_;
  std::vector<std::shared_ptr<PinnedBuffer>> buffers_;
  std::thread thread_;
};

}  // namespace hyscale
