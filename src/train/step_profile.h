// How the time of a step divides among phases (what the step is at) and parts (which ops run), from the ranges that layers,
// ops and collectives enter (core/range.h). On CUDA by events of the default stream, so the host is not held up.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/stream.h"

namespace hyscale {

class StepProfile {
 public:
  explicit StepProfile(Device device) : device_(device) {}
  ~StepProfile();

  // From here to finish() the ranges of this thread are timed. One profile at a time.
  void begin();

  struct Seconds {
    // "forward layers", "head and loss", "backward layers" (with recomputation), "optimizer", "the rest".
    std::map<std::string, double> phases;
    // By the outermost op: a product inside the LM head is the head's. "selection", "attention", "index loss", "products", "experts", "head and loss", "optimizer", "communication", "the rest";
    // and what families add: "linear attention", "compression", "hyper-connections", "n-gram memory".
    std::map<std::string, double> parts;
  };
  // Synchronises.
  Seconds finish();

 private:
  struct Place {
    const char *phase, *part;
    bool operator==(const Place&) const = default;
  };
  struct Mark {
    size_t event;
    Place place;  // of the time from here to the next mark
  };
  void observe(const char* name, bool enters);
  void mark(Place);

  Device device_;
  bool running_ = false;
  std::vector<std::unique_ptr<Event>> events_;  // kept from profile to profile
  std::vector<Mark> marks_;
  std::vector<Place> stack_;
};

}  // namespace hyscale
