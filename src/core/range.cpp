#include "core/range.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#ifdef HYSCALE_HAS_CUDA
#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>
#endif

namespace hyscale {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMostDepth = 8, kMostName = 64;

struct Stack {
  std::mutex mutex;
  std::array<std::array<char, kMostName>, kMostDepth> names{};
  size_t depth = 0;
  Clock::time_point changed = Clock::now();
};
std::function<void(const char*, bool)>& observer() {
  static std::function<void(const char*, bool)> f;
  return f;
}

Stack& stack() {
  static Stack s;
  return s;
}

bool runs_steps() {
  static const std::thread::id first = std::this_thread::get_id();
  return std::this_thread::get_id() == first;
}

}  // namespace

Range::Range(const char* name) {
#ifdef HYSCALE_HAS_CUDA
  nvtxRangePushA(name);
#endif
  if (!runs_steps()) return;
  Stack& s = stack();
  const std::lock_guard lock(s.mutex);
  if (s.depth < kMostDepth) std::strncpy(s.names[s.depth].data(), name, kMostName - 1);
  ++s.depth;
  s.changed = Clock::now();
  if (observer()) observer()(name, true);
}

Range::~Range() {
#ifdef HYSCALE_HAS_CUDA
  nvtxRangePop();
#endif
  if (!runs_steps()) return;
  Stack& s = stack();
  const std::lock_guard lock(s.mutex);
  --s.depth;
  s.changed = Clock::now();
  if (observer()) observer()("", false);
}

void observe_ranges(std::function<void(const char*, bool)> f) { observer() = std::move(f); }

void start_capture() {
#ifdef HYSCALE_HAS_CUDA
  cudaProfilerStart();
#endif
}

void stop_capture() {
#ifdef HYSCALE_HAS_CUDA
  cudaProfilerStop();
#endif
}

Activity current_activity() {
  Stack& s = stack();
  const std::lock_guard lock(s.mutex);
  Activity a;
  for (size_t i = 0; i < std::min(s.depth, kMostDepth); ++i) a.where += (i ? " > " : "") + std::string(s.names[i].data());
  if (s.depth == 0) a.where = "between operations";
  a.seconds_since_change = std::chrono::duration<double>(Clock::now() - s.changed).count();
  return a;
}

}  // namespace hyscale
