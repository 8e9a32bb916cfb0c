// Running the product's programs in tests, and folders that vanish.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/errors.h"

namespace hyscale::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    char name[] = "/tmp/hyscale-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_file(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// A child process whose output goes to a file.
class Child {
 public:
  // file_limit: largest file it may write, in bytes (a disk that fills up); 0: none.
  Child(const std::vector<std::string>& command, const std::string& output, size_t file_limit = 0) : output_(output) {
    pid_ = fork();
    if (pid_ != 0) return;
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(file, 1);
    dup2(file, 2);
    if (file_limit > 0) {
      const rlimit limit{file_limit, file_limit};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    std::vector<char*> arguments;
    for (const std::string& a : command) arguments.push_back(const_cast<char*>(a.c_str()));
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  ~Child() {
    if (!waited_) kill(pid_, SIGKILL), wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void send(int signal) { kill(pid_, signal); }
  bool running() { return !waited_ && waitpid(pid_, &status_, WNOHANG) == 0 ? true : (waited_ = true, false); }
  // Exit code, or minus the signal that ended it.
  int wait() {
    if (!waited_) waitpid(pid_, &status_, 0), waited_ = true;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
  }
  std::string output() const { return read_file(output_); }

 private:
  std::string output_;
  pid_t pid_ = 0;
  int status_ = 0;
  bool waited_ = false;
};

struct Finished {
  int code;
  std::string output;
};
inline Finished run(const std::vector<std::string>& command, size_t file_limit = 0) {
  const TemporaryFolder folder;
  Child child(command, folder / "output", file_limit);
  const int code = child.wait();
  return {code, child.output()};
}

}  // namespace hyscale::test
