// What the process is doing: nested named ranges of layers, ops and collectives. They are on the timeline of Nsight Systems
// in builds with CUDA, and tell the watchdog where a run stands. For the latter only the thread counts that entered one first:
// the one that runs steps.
#pragma once
#include <functional>
#include <string>

namespace hyscale {

class Range {
 public:
  explicit Range(const char* name);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

struct Activity {
  std::string where;          // "backward layer 3 > sparse_attention_backward"; "between operations" outside of every range
  double seconds_since_change = 0;  // since a range was entered or left
};
// From any thread.
Activity current_activity();

// Starts and ends what a profiler captures (Nsight Systems with --capture-range=cudaProfilerApi). Does nothing in builds without CUDA.
void start_capture();
void stop_capture();

// Called on entering and leaving each range of the thread that runs steps, for profiles; an empty function ends it.
void observe_ranges(std::function<void(const char* name, bool enters)>);

}  // namespace hyscale
