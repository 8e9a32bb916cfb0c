#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <utility>

#include "core/error.h"

namespace hyscale {
namespace {

[[noreturn]] void fail(const std::string& path, const char* doing) { throw UserError(concat(path, ": cannot ", doing, ": ", std::strerror(errno))); }

int open_or_fail(const std::string& path, int flags, const char* doing) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (descriptor < 0) fail(path, doing);
  return descriptor;
}

// The files that are mapped, for the handler of SIGBUS, which may take no lock; one beyond so many has no name there.
std::array<std::atomic<const MappedFile*>, 256> mapped_files;

extern "C" void name_lost_file(int signal, siginfo_t* info, void*) {
  for (const auto& entry : mapped_files) {
    const MappedFile* file = entry;
    const char* at = static_cast<const char*>(info->si_addr);
    if (!file || at < file->data() || at >= file->data() + file->size()) continue;
    constexpr char kWhat[] = ": cannot be read any more: it was shortened, or its disk failed; a file in use is replaced by renaming\n";
    [[maybe_unused]] ssize_t ignored = ::write(STDERR_FILENO, file->path().c_str(), file->path().size());
    ignored = ::write(STDERR_FILENO, kWhat, sizeof kWhat - 1);
    ::_exit(2);
  }
  std::signal(signal, SIG_DFL);  // not one of ours: the instruction runs again, and ends the process
}

void register_mapping(const MappedFile* file) {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = name_lost_file;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &action, nullptr);
  });
  for (auto& entry : mapped_files)
    if (const MappedFile* none = nullptr; entry.compare_exchange_strong(none, file)) return;
}

void forget_mapping(const MappedFile* file) {
  for (auto& entry : mapped_files)
    if (const MappedFile* same = file; entry.compare_exchange_strong(same, nullptr)) return;
}

constexpr size_t kMostAtOnce = size_t{1} << 30;  // the kernel moves less than 2 GiB per call

}  // namespace

File File::open_to_read(const std::string& path) {
  File file(path, open_or_fail(path, O_RDONLY, "open"));
  struct stat status;
  if (::fstat(file.descriptor_, &status) != 0) fail(path, "open");
  if (!S_ISREG(status.st_mode)) throw UserError(path + ": is not a regular file");
  return file;
}
File File::create(const std::string& path) { return {path, open_or_fail(path, O_WRONLY | O_CREAT | O_TRUNC, "create")}; }
File File::open_to_append(const std::string& path) { return {path, open_or_fail(path, O_WRONLY | O_CREAT | O_APPEND, "open")}; }

File::File(File&& o) noexcept : path_(std::move(o.path_)), descriptor_(std::exchange(o.descriptor_, -1)) {}
File& File::operator=(File&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(descriptor_, o.descriptor_);
  return *this;
}
File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int64_t File::size() const {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) fail(path_, "read the size");
  return status.st_size;
}

void File::read_at(int64_t offset, void* to, size_t bytes) const {
  char* next = static_cast<char*>(to);
  for (size_t left = bytes; left > 0;) {
    const ssize_t got = ::pread(descriptor_, next, std::min(left, kMostAtOnce), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, "read");
    if (got == 0) throw UserError(concat(path_, ": is truncated: needed bytes up to ", offset + static_cast<int64_t>(left), ", the file has ", size()));
    next += got;
    offset += got;
    left -= static_cast<size_t>(got);
  }
}

void File::write(const void* from, size_t bytes) {
  const char* next = static_cast<const char*>(from);
  for (size_t left = bytes; left > 0;) {
    const ssize_t put = ::write(descriptor_, next, std::min(left, kMostAtOnce));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail(path_, "write");
    next += put;
    left -= static_cast<size_t>(put);
  }
}

void File::truncate(int64_t bytes) {
  if (::ftruncate(descriptor_, bytes) != 0) fail(path_, "truncate");
}
void File::sync() {
  if (::fsync(descriptor_) != 0) fail(path_, "sync");
}
void File::close() {
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(path_, "close");
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const File file = File::open_to_read(path);
  size_ = file.size();
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, file.descriptor_, 0);
  if (mapped == MAP_FAILED) fail(path, "map");
  data_ = static_cast<const char*>(mapped);
  register_mapping(this);
}
MappedFile::~MappedFile() {
  if (!data_) return;
  forget_mapping(this);
  ::munmap(const_cast<char*>(data_), static_cast<size_t>(size_));
}

std::string read_text_file(const std::string& path) {
  const File file = File::open_to_read(path);
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, text.data(), text.size());
  return text;
}

void write_text_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  File file = File::create(temporary);
  file.write(text.data(), text.size());
  file.sync();
  file.close();
  rename_file(temporary, path);
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw UserError(concat(path, ": cannot create the folder: ", error.message()));
}

void rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(to, "rename into place");
}

void sync_directory(const std::string& path) {
  const int descriptor = open_or_fail(path, O_RDONLY | O_DIRECTORY, "open the folder");
  const int result = ::fsync(descriptor);
  ::close(descriptor);
  if (result != 0) fail(path, "sync the folder");
}

}  // namespace hyscale
