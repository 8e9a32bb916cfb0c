#include "core/arena.h"

#include <algorithm>

namespace hyscale {

static constexpr size_t kAlign = 256;
static constexpr size_t kMinBlock = size_t{1} << 22;

Arena::Arena(Device device, std::string purpose, size_t reserve_bytes) : device_(device), purpose_(std::move(purpose)) {
  if (reserve_bytes) blocks_.emplace_back(device_, (reserve_bytes + kAlign - 1) / kAlign * kAlign, purpose_);
}

Tensor Arena::allocate(DType dtype, Shape shape) {
  const size_t bytes = (static_cast<size_t>(shape.elements()) * dtype_bytes(dtype) + kAlign - 1) / kAlign * kAlign;
  // Skip to the first block with room; what is skipped is used again after a rewind.
  while (mark_.block < blocks_.size() && mark_.offset + bytes > blocks_[mark_.block].bytes()) {
    ++mark_.block;
    mark_.offset = 0;
  }
  if (mark_.block == blocks_.size()) {
    // On meta blocks have the exact size, so that a plan counts what is used and no slack.
    const size_t block = device_.is_meta() ? bytes : std::max({bytes, kMinBlock, reserved_bytes() / 4 / kAlign * kAlign});
    blocks_.emplace_back(device_, block, purpose_);
  }
  char* base = static_cast<char*>(blocks_[mark_.block].data());
  Tensor t(base ? base + mark_.offset : nullptr, dtype, device_, shape);
  mark_.offset += bytes;
  mark_.used += bytes;
  peak_ = std::max(peak_, mark_.used);
#ifdef HYSCALE_POISON
  if (device_.is_cpu()) fill_bytes(t, 0xFF, {});
#endif
  return t;
}

Tensor Arena::allocate_zeroed(DType dtype, Shape shape, Stream stream) {
  Tensor t = allocate(dtype, shape);
  zero(t, stream);
  return t;
}

void Arena::rewind(Mark m) {
  HYSCALE_CHECK(m.block < mark_.block || (m.block == mark_.block && m.offset <= mark_.offset), "rewind forward in ", purpose_);
  mark_ = m;
}

size_t Arena::reserved_bytes() const {
  size_t n = 0;
  for (const Buffer& b : blocks_) n += b.bytes();
  return n;
}

}  // namespace hyscale
