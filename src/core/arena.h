// Arena: a bump allocator of Tensors on one device. It grows by whole blocks, keeps them when it is rewound, and is
// therefore free of allocation in the steady state.
#pragma once
#include <string>
#include <vector>

#include "core/memory.h"

namespace hyscale {

class Arena {
 public:
  // `purpose` names the arena in out-of-memory messages. The first block holds `reserve_bytes`.
  Arena(Device, std::string purpose, size_t reserve_bytes = 0);

  // Uninitialised, contiguous, aligned to 256 bytes; valid until the arena is rewound past it.
  Tensor allocate(DType, Shape);
  Tensor allocate_zeroed(DType, Shape, Stream);

  struct Mark {
    size_t block = 0, offset = 0, used = 0;
  };
  Mark mark() const { return mark_; }
  void rewind(Mark);
  void reset() { rewind({}); }

  Device device() const { return device_; }
  size_t used_bytes() const { return mark_.used; }
  size_t peak_bytes() const { return peak_; }          // most bytes in use at once
  size_t reserved_bytes() const;                       // bytes of all blocks

 private:
  Device device_;
  std::string purpose_;
  std::vector<Buffer> blocks_;
  Mark mark_;
  size_t peak_ = 0;
};

// Everything allocated from `arena` during this object's life is given back at its end.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.rewind(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace hyscale
