// Named ranges on the timeline of Nsight Systems: layers and ops of a step. Nothing without CUDA.
#pragma once
#ifdef HYSCALE_HAS_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace hyscale {

class Range {
 public:
#ifdef HYSCALE_HAS_CUDA
  explicit Range(const char* name) { nvtxRangePushA(name); }
  ~Range() { nvtxRangePop(); }
#else
  explicit Range(const char*) {}
#endif
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace hyscale
