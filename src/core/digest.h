// XXH3 of a file's bytes as 16 hexadecimal digits, all at once or while they are written.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

namespace hyscale {

class Digest {
 public:
  Digest();
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  void add(const void* bytes, size_t count);
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string file_digest(const std::string& path);

}  // namespace hyscale
