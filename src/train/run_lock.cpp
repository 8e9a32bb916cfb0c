#include "train/run_lock.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/communicator.h"
#include "core/error.h"
#include "core/file.h"

namespace hyscale {
namespace {

std::string holder_of(int descriptor) {
  char text[256] = {};
  const ssize_t n = ::pread(descriptor, text, sizeof text - 1, 0);
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "another process";
}

}  // namespace

RunLock::RunLock(const std::string& folder) {
  make_folder(folder);
  const std::string path = folder + "/run.lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw UserError(concat("checkpoint.directory: cannot write ", path, ": ", std::strerror(errno)));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      const std::string holder = holder_of(descriptor_);
      ::close(descriptor_);
      throw UserError(concat("checkpoint.directory: ", folder, " belongs to a run that is still going (", holder, "); stop it first, or set checkpoint.directory to another folder"));
    }
    spdlog::warn("{}: this file system has no locks ({}); see to it that no second run writes there", path, std::strerror(errno));
    return;
  }
  const std::string holder = concat("pid ", ::getpid(), " on ", host_name());
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, holder.data(), holder.size(), 0) != static_cast<ssize_t>(holder.size()))
    spdlog::warn("cannot write {}: {}", path, std::strerror(errno));
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

RunLock::RunLock(RunLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

}  // namespace hyscale
