#include "kernels/common/op.h"

namespace hyscale {

void unsupported_device(const char* op, Device device) {
  throw InternalError(concat(op, " has no implementation on ", to_string(device), " in this build"));
}

void* Workspace::take_bytes(size_t bytes) {
  const size_t n = aligned_bytes(bytes);
  HYSCALE_CHECK(n <= left_, "workspace has ", left_, " bytes left, ", n, " are needed");
  void* p = next_;
  next_ += n;
  left_ -= n;
  return p;
}

}  // namespace hyscale
