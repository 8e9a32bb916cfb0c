// Errors. UserError: something the user can put right (file, key, value, what would be right).
// InternalError: a broken invariant of ours, with the expression, the values and the place.
// Usable from .cu files: no fmt here.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace hyscale {

class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InternalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// All arguments, streamed one after the other.
template <typename... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

[[noreturn]] void throw_internal(const char* expression, const std::string& message, const char* file, int line);

}  // namespace hyscale

// Precondition of an op or invariant of ours: HYSCALE_CHECK(k > 0, "k is ", k).
#define HYSCALE_CHECK(condition, ...)                                                               \
  do {                                                                                              \
    if (!(condition)) ::hyscale::throw_internal(#condition, ::hyscale::concat(__VA_ARGS__), __FILE__, __LINE__); \
  } while (0)
