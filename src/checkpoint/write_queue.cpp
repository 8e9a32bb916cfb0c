#include "checkpoint/write_queue.h"

#include <algorithm>
#include <utility>

namespace hyscale {

WriteQueue::WriteQueue(bool background) : background_(background) {
  if (background_) thread_ = std::thread([this] { run(); });
}

WriteQueue::~WriteQueue() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WriteQueue::push(std::function<void()> work) {
  if (!background_) return work();
  {
    const std::lock_guard lock(mutex_);
    if (!error_) work_.push_back(std::move(work));
  }
  wake_.notify_all();
}

void WriteQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return ends_ || !work_.empty(); });
    if (ends_) return;
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      work();
      work = {};  // its buffers are free before anyone is told
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    if (error) {
      error_ = error;
      work_.clear();
    }
    if (work_.empty()) done_.notify_all();
  }
}

void WriteQueue::throw_error() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

size_t WriteQueue::pending() {
  const std::lock_guard lock(mutex_);
  throw_error();
  return work_.size() + (busy_ ? 1 : 0);
}

void WriteQueue::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return work_.empty() && !busy_; });
  throw_error();
}

std::shared_ptr<PinnedBuffer> WriteQueue::buffer(size_t bytes) {
  // The smallest free one that is large enough; else the largest free one grows.
  std::shared_ptr<PinnedBuffer>* best = nullptr;
  for (auto& b : buffers_) {
    if (b.use_count() > 1) continue;
    const bool fits = b->bytes() >= bytes, best_fits = best && (*best)->bytes() >= bytes;
    if (!best || (fits ? !best_fits || b->bytes() < (*best)->bytes() : !best_fits && b->bytes() > (*best)->bytes())) best = &b;
  }
  if (!best) best = &buffers_.emplace_back(std::make_shared<PinnedBuffer>());
  (*best)->reserve(std::max<size_t>(bytes, 1));
  return *best;
}

}  // namespace hyscale
