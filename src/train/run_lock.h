// One run per folder: a lock on FOLDER/run.lock, held for as long as the process lives (the kernel drops it when the process
// dies, however it does). The file says who holds it.
#pragma once
#include <string>

namespace hyscale {

class RunLock {
 public:
  RunLock() = default;
  // Creates the folder where there is none. Throws UserError naming folder, host and pid when another process holds the lock.
  // On file systems without locks it warns and holds nothing.
  explicit RunLock(const std::string& folder);
  ~RunLock();
  RunLock(RunLock&&) noexcept;
  RunLock& operator=(RunLock&&) noexcept;

 private:
  int descriptor_ = -1;
};

}  // namespace hyscale
