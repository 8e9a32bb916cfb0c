#include "core/error.h"

namespace hyscale {

void throw_internal(const char* expression, const std::string& message, const char* file, int line) {
  throw InternalError(concat("check failed: ", expression, message.empty() ? "" : ": ", message, " (", file, ":", line, ")"));
}

}  // namespace hyscale
